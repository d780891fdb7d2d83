"""The whole text of `helm template`, applied as tools without Helm's hooks do, and the commands of docs/gitops.md.

The pods of every Job that exists are run, so a Job that stops something would do so here. A GitOps tool applies on
the server's side, with a field manager of its own, again and again: `kubectl` sends the same requests.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.api.meta import Object
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm
from bowline.localcluster.ports import free_port
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import WorkloadOptions, start_workload
from tests.chart.jobs import running_jobs
from tests.chart.presets import EVERYTHING, LOCAL
from tests.chart.rendering import CHART, NAMESPACE, Chart, merged
from tests.chart.shell import Shell
from tests.documents import commands
from tests.waiting import wait_until

pytestmark = pytest.mark.long

PAGE = "docs/gitops.md"
# The defaults of everything that hooks and replicas depend on; a short wait for writes of a former leader.
VALUES = merged(
    {key: value for key, value in LOCAL.items() if key not in ("hooks", "reconciler", "webhook")},
    {"config": {"binding": {"inFlightTimeout": "2s"}}},
)
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KUSTOMIZATION = {
    "helmGlobals": {"chartHome": "charts"},
    "helmCharts": [
        {"name": "bowline", "releaseName": "bowline", "namespace": NAMESPACE, "valuesFile": "values.yaml"}
    ],
}
AUTO = {"check": "Auto", "uninstall": "Auto", "test": "Auto"}
AS_TOOL = ("--server-side", "--force-conflicts", "--field-manager=argocd-controller", "--filename=-")
TRUST = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
TEXT = f"helm template bowline charts/bowline --namespace {NAMESPACE} --values values.yaml"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane on which the pods of Jobs are run."""
    with Cluster.start(ClusterSpec(kwok=False)) as local_cluster, running_jobs(local_cluster, NAMESPACE):
        local_cluster.make_namespace(NAMESPACE)
        yield local_cluster


@pytest.fixture
def shell(cluster: Cluster, helm_command: Helm, tmp_path: Path) -> Shell:
    """A shell in a folder with a kustomization, too."""
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(KUSTOMIZATION))
    return Shell.at(tmp_path, cluster, helm_command, VALUES)


def release(shell: Shell) -> list[str]:
    """The arguments of a command of Helm about the release."""
    return ["bowline", str(CHART), f"--namespace={NAMESPACE}", f"--values={shell.folder / 'values.yaml'}"]


def replicas(cluster: Cluster) -> dict[str, int]:
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in cluster.api.get(DEPLOYMENTS)["items"]}


def wait_for_jobs(cluster: Cluster) -> None:
    """Wait until every Job has ended."""

    def ended() -> bool:
        jobs: list[Object] = cluster.api.get(JOBS)["items"]
        return all(
            any(
                condition["type"] in ("Complete", "Failed")
                for condition in job.get("status", {}).get("conditions", ())
            )
            for job in jobs
        )

    wait_until(ended, "the end of every Job")


def test_kustomize_renders_the_same_objects(cluster: Cluster, shell: Shell) -> None:
    def objects(command: str) -> dict[tuple[str, str], str]:
        text = shell.run(command)
        read = [obj for obj in yaml.safe_load_all(text) if obj]
        # It folds long lines of expressions in other places.
        return {
            (o["kind"], o["metadata"]["name"]): re.sub(r"(\s|\\n)+", "", json.dumps(o, sort_keys=True)) for o in read
        }

    assert objects("kubectl kustomize --enable-helm .") == objects(TEXT)


def test_the_whole_rendered_text_stops_nothing_however_often_it_is_applied(cluster: Cluster, shell: Shell) -> None:
    for _ in range(2):
        shell.run(f"{TEXT} | kubectl apply --server-side --force-conflicts -f -")
        wait_for_jobs(cluster)
        assert replicas(cluster) == {"bowline-reconciler": 2, "bowline-webhook": 2}
        # A finished Job is gone after its TTL; then the next apply would run it again.
        cluster.kubectl("--namespace", NAMESPACE, "delete", "jobs", "--all", "--cascade=foreground")
    objects = "clusterroles,roles,serviceaccounts,pods,validatingadmissionpolicies"
    read = json.loads(cluster.kubectl("get", objects, "--all-namespaces", "--output=json").stdout)["items"]
    hooks = [item["metadata"]["name"] for item in read if "helm.sh/hook" in item["metadata"].get("annotations", {})]
    assert hooks == [], "rights that are meant for the time of a hook would stay"


def test_only_helm_at_a_cluster_renders_hooks_by_itself(cluster: Cluster, shell: Shell) -> None:
    def hooks(value: str, *options: str) -> set[str]:
        values = json.dumps(dict.fromkeys(("check", "uninstall", "test"), json.loads(value)))
        command = ["template", *release(shell)]
        # What the tests above have applied belongs to no release.
        command += ["--take-ownership", f"--set-json=hooks={values}", *options]
        text = shell.helm.run(command, cluster.kubeconfig)
        objects: list[Any] = list(yaml.safe_load_all(text))
        return {
            obj["metadata"]["annotations"]["helm.sh/hook"]
            for obj in objects
            if obj and "helm.sh/hook" in obj["metadata"].get("annotations", {})
        }

    everything = {"pre-install,pre-upgrade", "pre-delete", "test"}
    assert hooks('"Auto"') == set()
    assert hooks('"Auto"', "--dry-run=server") == everything
    assert hooks("true") == everything
    assert hooks("false", "--dry-run=server") == set()


def test_the_configuration_may_be_without_each_of_its_keys(cluster: Cluster, shell: Shell) -> None:
    keys = yaml.safe_load((CHART / "values.yaml").read_text())["config"].keys() - {"schedulerNames"}
    nulls = json.dumps(dict.fromkeys(keys))
    # The notes, too, are of what the cluster has.
    command = ["install", *release(shell)]
    command += ["--take-ownership", "--dry-run=server", f"--set-json=config={nulls}"]
    notes = shell.helm.run(command, cluster.kubeconfig).partition("\nNOTES:\n")[2]
    assert "RuntimeClass nvidia" in notes
    assert "docs/index.md" in notes


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("monitoring.podMonitor.enabled=true", "monitoring.coreos.com/v1/PodMonitor"),
        ("monitoring.rules.enabled=true", "monitoring.coreos.com/v1/PrometheusRule"),
        ("webhook.tls.mode=cert-manager", "cert-manager.io/v1/Certificate"),
    ],
)
def test_a_kind_that_the_cluster_lacks_is_named_with_its_value(
    cluster: Cluster, shell: Shell, value: str, kind: str
) -> None:
    command = ["template", *release(shell)]
    command += ["--take-ownership", "--dry-run=server", f"--set={value}"]
    with pytest.raises(CommandError, match=f"{value.partition('=')[0]}: the cluster does not serve {kind}: install"):
        shell.helm.run(command, cluster.kubeconfig)


def test_the_commands_of_the_page_install_check_and_remove(cluster: Cluster, shell: Shell) -> None:
    apply, check, wait_check, uninstall, wait_uninstall, admission, delete = [c.text for c in commands(PAGE)]
    shell.run(apply)
    assert replicas(cluster) == {"bowline-reconciler": 2, "bowline-webhook": 2}
    for _ in range(2):
        shell.run(check)
        shell.run(wait_check)
    shell.run(uninstall)
    shell.run(wait_uninstall)
    assert replicas(cluster)["bowline-reconciler"] == 0
    shell.run(admission)
    shell.run(delete)
    assert replicas(cluster) == {}
    assert cluster.api.get(f"{CRDS}/bindrequests.scheduling.run.ai"), "its deletion deletes every request"
    assert cluster.api.get("/api/v1/namespaces/kai-resource-reservation")


def test_an_apply_after_the_removal_works(cluster: Cluster, shell: Shell, chart: Chart) -> None:
    shell.run(commands(PAGE)[0].text)
    deployments = json.loads(cluster.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json").stdout)["items"]
    assert len(deployments) == len(chart.render().of_kind("Deployment"))


def manifest(chart: Chart, values: Mapping[str, Any]) -> str:
    """Everything that `helm template` prints, in JSON."""
    return "\n".join(json.dumps(obj) for obj in chart.render(merged({"hooks": AUTO}, values)).objects)


def apply_first(cluster: Cluster, text: str) -> None:
    """Apply the text as the tool that installs the release: no hook of another manager is left."""
    cluster.kubectl("delete", ",".join(TRUST), "--all")
    cluster.kubectl("apply", *AS_TOOL, input=text)


def differences(cluster: Cluster, text: str) -> list[str]:
    """The objects that an apply of the text would change."""
    result = cluster.kubectl("diff", *AS_TOOL, input=text, check=False)
    assert result.returncode == (1 if result.stdout else 0), result.stderr
    return re.findall(r"(?m)^\+\+\+ \S+/(\S+)", result.stdout)


def trust(cluster: Cluster) -> list[str]:
    """The CA's Secret and the bundles that the webhook has written."""
    bundles = [
        hook["clientConfig"].get("caBundle", "")
        for plural in TRUST
        for hook in cluster.api.get(f"/apis/admissionregistration.k8s.io/v1/{plural}/bowline-webhook")["webhooks"]
    ]
    return [json.dumps(cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/bowline-ca").get("data")), *bundles]


def test_the_ca_of_a_running_webhook_survives_every_apply(chart: Chart, cluster: Cluster) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = manifest(chart, merged(LOCAL, {"webhook": {"url": f"https://{address}"}}))
    apply_first(cluster, text)
    cluster.wait_established("bindrequests.scheduling.run.ai")
    webhook = start_workload(cluster, NAMESPACE, "bowline-webhook", WorkloadOptions().with_listen(address))
    try:
        webhook.wait_ready()
        before = trust(cluster)
        assert all(before)
        assert differences(cluster, text) == []
        # A change of something else is applied, and only that.
        changed_text = text.replace("--log-level=info", "--log-level=debug")
        deployments = [f"apps.v1.Deployment.{NAMESPACE}.bowline-{name}" for name in ("reconciler", "webhook")]
        assert sorted(differences(cluster, changed_text)) == deployments
        for applied in (text, changed_text):
            cluster.kubectl("apply", *AS_TOOL, input=applied)
            assert trust(cluster) == before
        assert webhook.get("/readyz")[0] == 200
    finally:
        webhook.stop()


@pytest.mark.parametrize("values", [EVERYTHING, {"podSecurityContext": None, "containerSecurityContext": None}])
def test_a_second_apply_changes_nothing(chart: Chart, cluster: Cluster, values: dict[str, Any]) -> None:
    text = manifest(chart, values)
    apply_first(cluster, text)
    assert differences(cluster, text) == []
