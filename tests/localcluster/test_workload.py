"""Processes from rendered objects on a real API server, and Helm on a chart of three lines."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bowline.localcluster.chart import ChartRelease, documents
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError, RenderError, StartError
from bowline.localcluster.helm import Helm, find_helm
from bowline.localcluster.kubeconfig import access_flags
from bowline.localcluster.workload import WorkloadOptions, start_pod, start_workload
from tests.localcluster.conftest import MakeScript

# Serves /readyz and its input; as a container's program it is part of the rendered object.
PROGRAM = """
import argparse, http.server, json, os, pathlib
flags = argparse.ArgumentParser()
for name in ("--config", "--server", "--token-file", "--ca-file", "--metrics-listen"):
    flags.add_argument(name)
given = flags.parse_args()
access = [given.server, given.token_file, given.ca_file]
seen = {"config": pathlib.Path(given.config).read_text(), "access": access, "env": dict(os.environ)}
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in ("/readyz", "/seen") else 404)
        self.end_headers()
        self.wfile.write(json.dumps(seen).encode())
host, port = given.metrics_listen.split(":")
http.server.HTTPServer((host, int(port)), Page).serve_forever()
"""
OBJECTS = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: probe, namespace: rendered}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: probe-config, namespace: rendered}}
data: {{config.yaml: "hello: world"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: probe, namespace: rendered}}
spec:
  replicas: 0
  selector: {{matchLabels: {{app: probe}}}}
  template:
    metadata: {{labels: {{app: probe}}}}
    spec:
      serviceAccountName: probe
      containers:
      - name: probe
        image: example.invalid/image
        command: [python, -c, {json.dumps(PROGRAM)}]
        args: [--config=/etc/probe/config.yaml, "--metrics-listen=0.0.0.0:8080"]
        env:
        - {{name: POD_NAMESPACE, valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}}}
        - {{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
        volumeMounts: [{{name: config, mountPath: /etc/probe}}]
      volumes: [{{name: config, configMap: {{name: probe-config}}}}]
"""


@pytest.fixture(scope="module")
def cluster_with_probe(own_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the objects above."""
    own_cluster.make_namespace("rendered")
    own_cluster.kubectl("apply", "-f=-", input=OBJECTS)
    yield own_cluster
    own_cluster.kubectl("delete", "namespace", "rendered", "--wait=false")


def test_a_deployment_runs_as_its_service_account_with_its_configuration(
    cluster_with_probe: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_DEVELOPERS_SHELL", "1")
    process = start_workload(cluster_with_probe, "rendered", "probe")
    try:
        process.wait_ready()
        report = json.loads(process.get("/seen")[1])
        assert report["config"] == "hello: world"
        assert report["env"]["POD_NAMESPACE"] == "rendered"
        assert report["env"]["POD_NAME"] == process.name == "probe-local"
        assert "OF_THE_DEVELOPERS_SHELL" not in report["env"]
        assert process.kubeconfig is not None
        assert report["access"] == list(access_flags(process.kubeconfig).values())
        result = cluster_with_probe.kubectl(
            "auth", "whoami", "-o=jsonpath={.status.userInfo.username}", kubeconfig=process.kubeconfig
        )
        assert result.stdout == "system:serviceaccount:rendered:probe"
    finally:
        assert process.stop() is True


def test_a_killed_process_can_be_restarted_beside_another(cluster_with_probe: Cluster) -> None:
    first = start_workload(cluster_with_probe, "rendered", "probe", WorkloadOptions(name="probe-a"))
    second = start_workload(cluster_with_probe, "rendered", "probe", WorkloadOptions(name="probe-b"))
    try:
        first.wait_ready()
        second.wait_ready()
        assert first.metrics != second.metrics
        first.kill()
        assert first.returncode == -9
        with pytest.raises(StartError, match="probe-a ended with -9"):
            first.wait_ready()
        first = start_workload(cluster_with_probe, "rendered", "probe", WorkloadOptions(name="probe-a"))
        first.wait_ready()
    finally:
        first.stop()
        second.stop()


def test_a_process_that_exits_immediately_is_reported_with_its_log(cluster_with_probe: Cluster) -> None:
    spec = {
        "serviceAccountName": "probe",
        "containers": [{"name": "x", "command": ["python", "-c", "raise SystemExit('no configuration')"]}],
    }
    options = WorkloadOptions(name="ends", metrics_listen="127.0.0.1:1")
    process = start_pod(cluster_with_probe, "rendered", spec, options)
    with pytest.raises(StartError, match=r"(?s)ends ended with [12].*"):
        process.wait_ready()
    process.wait()


def test_a_pod_without_a_token_gets_no_kubeconfig(cluster_with_probe: Cluster) -> None:
    code = "import sys; print('arguments', sys.argv[1:], flush=True)"
    spec = {"automountServiceAccountToken": False, "containers": [{"name": "x", "command": ["python", "-c", code]}]}
    process = start_pod(cluster_with_probe, "rendered", spec, WorkloadOptions(name="no-token"))
    process.wait()
    assert process.kubeconfig is None
    assert "arguments []" in process.process.tail()


def test_a_name_that_is_no_pods_is_rejected(cluster_with_probe: Cluster) -> None:
    with pytest.raises(RenderError, match="needs a name"):
        start_pod(cluster_with_probe, "rendered", {"containers": []}, WorkloadOptions(name="../x"))


CHART = {
    "Chart.yaml": "apiVersion: v2\nname: tiny\nversion: 0.1.0\n",
    "values.yaml": "word: default\nnested: {count: 1}\n",
    "templates/map.yaml": textwrap.dedent("""\
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: {{ .Release.Name }}-map}
        data: {word: {{ .Values.word | quote }}, count: {{ .Values.nested.count | quote }}}
        ---# a comment right after the mark
        apiVersion: v1
        kind: ServiceAccount
        metadata: {name: {{ .Release.Name }}}
        """),
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A chart of two objects."""
    folder = tmp_path / "tiny"
    for name, text in CHART.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_values_reach_the_rendered_objects_with_their_types(tiny: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("word: from a file\n")
    release = ChartRelease("one", tiny, "here", [values], {"nested.count": 3, "word": "a,b=c {d}"})
    objects = {item["kind"]: item for item in find_helm().template(release)}
    assert objects["ConfigMap"]["data"] == {"word": "a,b=c {d}", "count": "3"}
    assert objects["ServiceAccount"]["metadata"]["name"] == "one"


def test_a_release_is_installed_upgraded_and_removed(own_cluster: Cluster, tiny: Path) -> None:
    helm = find_helm()
    maps = "/api/v1/namespaces/charted/configmaps"
    for word in ("first", "second"):
        helm.upgrade_install(ChartRelease("two", tiny, "charted", (), {"word": word}), own_cluster.kubeconfig)
        assert own_cluster.api.get(f"{maps}/two-map")["data"]["word"] == word
    helm.uninstall("two", "charted", own_cluster.kubeconfig)
    assert [item["metadata"]["name"] for item in own_cluster.api.get(maps)["items"]] == []


def test_helms_message_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="helm template one"):
        find_helm().template(ChartRelease("one", tmp_path / "nothing", "here"))


def test_helm_does_not_use_the_kubeconfig_of_the_users_shell(
    tmp_path: Path, make_script: MakeScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/home/alice/production")
    monkeypatch.setenv("HELM_KUBECONTEXT", "production")
    script = make_script(tmp_path / "helm", 'echo "[$KUBECONFIG$HELM_KUBECONTEXT] $*"')
    assert Helm(script).run(["list"], tmp_path / "k").strip() == f"[] list --kubeconfig={tmp_path / 'k'}"


def test_documents_are_split_as_helm_splits_them() -> None:
    text = "---\n# Source: x\na: 1\n---# comment\nb: '---'\n---\n# nothing but a comment\n"
    assert documents(text) == [{"a": 1}, {"b": "---"}]
    assert documents(yaml.safe_dump_all([{"a": 1}, {"b": 2}])) == [{"a": 1}, {"b": 2}]
