"""Installs and upgrades whose configuration is checked first, by the processes' own code, and what becomes of a
configuration that running pods use.

The hook's Job is created by Helm, its pod by the Job controller; only the kubelet is replaced (`localcluster.jobs`).
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.localcluster.chart import ChartRelease
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm
from bowline.localcluster.spec import ClusterSpec
from tests.chart.jobs import running_jobs
from tests.chart.presets import LOCAL
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, merged
from tests.waiting import wait_until

CHECKED = merged(LOCAL, {"hooks": {"check": True}})
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
INVALID = {
    "plugins": [{"name": "no_such_plugin"}, {"name": "node_fit", "args": {"x": 1}}],
    "pluginOrder": ["node_fit"],
    "workloads": [],
}


SELECTED = "labelSelector=app.kubernetes.io%2Fname%3Dbowline"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "configmaps": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "pods": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "services": f"/api/v1/namespaces/{NAMESPACE}/services",
    "serviceaccounts": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "deployments": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "replicasets": f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets",
    "jobs": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "validatingwebhookconfigurations": f"{ADMISSION}/validatingwebhookconfigurations",
}


@dataclass(frozen=True, slots=True)
class Installed:
    """The release on its cluster; `values` are those of every install and upgrade."""

    helm: Helm
    cluster: Cluster
    values: dict[str, Any]

    def upgrade(self, *layers: dict[str, Any]) -> str:
        """Install or upgrade with these values over the release's; CommandError with Helm's message."""
        release = ChartRelease(RELEASE, CHART, NAMESPACE, set_values=merged(self.values, *layers))
        return self.helm.upgrade_install(release, self.cluster.kubeconfig)

    def objects(self, *kinds: str) -> dict[tuple[str, str], Any]:
        """Return the chart's objects of these kinds by kind and name."""
        return {
            (kind, obj["metadata"]["name"]): obj
            for kind in kinds
            for obj in self.cluster.api.get(f"{PATHS[kind]}?{SELECTED}")["items"]
        }

    def configurations(self) -> list[str]:
        """Return the names of the ConfigMaps that processes mount, of all revisions."""
        return sorted(name for _, name in self.objects("configmaps") if name.startswith(f"{RELEASE}-config-"))

    def mounted(self) -> str:
        """Return the ConfigMap of the reconciler's pods."""
        deployment = self.cluster.api.get(f"{PATHS['deployments']}/bowline-reconciler")
        name: str = deployment["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
        return name

    def pods(self, configuration: str) -> list[str]:
        """Return the names of the pods that mount a ConfigMap."""
        pods = self.objects("pods").values()
        mounts = {pod["metadata"]["name"]: pod["spec"]["volumes"][0]["configMap"]["name"] for pod in pods}
        return [name for name, mount in mounts.items() if mount == configuration]

    def set_ready(self, *pods: str) -> None:
        """Report the pods as Ready, as a kubelet would."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        for pod in pods:
            self.cluster.api.patch(f"{PATHS['pods']}/{pod}/status", {"status": status})

    def await_no_jobs(self) -> None:
        """Wait until no Job is left, and no pod: the garbage collector deletes it after its Job."""
        wait_until(lambda: not self.objects("jobs", "pods"), "no Job and no pod is left")

    def await_settled(self) -> None:
        """Wait until the Deployment controller has written the last status of the Deployments."""

        def is_settled(deployment: Any) -> bool:
            conditions = deployment.get("status", {}).get("conditions") or ()
            return "NewReplicaSetAvailable" in {condition["reason"] for condition in conditions}

        wait_until(lambda: all(map(is_settled, self.objects("deployments").values())), "the Deployments are settled")

    def errors(self) -> str:
        """Return what the containers of the failed check reported."""
        # The garbage collector deletes the pod of the former check.
        wait_until(lambda: len(self.objects("pods")) == 1, "the pod of the last check is the only one")
        (pod,) = self.objects("pods").values()
        return "\n".join(status["state"]["terminated"]["message"] for status in pod["status"]["containerStatuses"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec(kwok=False)) as local_cluster:
        yield local_cluster


@pytest.fixture
def namespace(helm_command: Helm, cluster: Cluster) -> Iterator[None]:
    """The release's namespace, which only admits restricted pods. What is installed in it ends with it."""
    cluster.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
    try:
        with running_jobs(cluster, NAMESPACE):
            yield
            helm_command.uninstall(RELEASE, NAMESPACE, cluster.kubeconfig)
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE)


@pytest.fixture
def unchecked_release(namespace: None, helm_command: Helm, cluster: Cluster) -> Installed:
    """The release without the check before an upgrade: what these tests are about does not depend on it."""
    return Installed(helm_command, cluster, LOCAL)


def test_an_invalid_configuration_is_neither_installed_nor_upgraded_to(helm_command: Helm, cluster: Cluster) -> None:
    """The namespace does not exist before: Helm creates it."""
    release = Installed(helm_command, cluster, CHECKED)
    try:
        with running_jobs(cluster, NAMESPACE):
            with pytest.raises(CommandError, match="bowline-check"):
                release.upgrade({"config": INVALID})
            assert "no_such_plugin" in release.errors()
            kinds = ("deployments", "serviceaccounts", "services", "customresourcedefinitions")
            assert not release.objects(*kinds, "validatingwebhookconfigurations")
            cluster.api.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": RESTRICTED}})
            # The same command with a valid configuration.
            release.upgrade()
            names = {name for _, name in release.objects("deployments")}
            assert names == {"bowline-webhook", "bowline-reconciler"}
            release.await_no_jobs()
            refused_upgrades_change_nothing_and_list_every_error(release)
            helm_command.uninstall(RELEASE, NAMESPACE, cluster.kubeconfig)
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE)


def refused_upgrades_change_nothing_and_list_every_error(installation: Installed) -> None:
    kinds = ("configmaps", "deployments", "services", "clusterroles", "validatingwebhookconfigurations")
    installation.await_settled()
    before = installation.objects(*kinds)
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"config": INVALID}, ("no_such_plugin", "is no plugin; known:", "plugins[1].args.x", "pluginOrder")),
        # An error of each process.
        (
            {
                "reconciler": {"extraArgs": ["--no-such-option"]},
                "webhook": {"extraArgs": ["--no-such-flag"]},
            },
            ("--no-such-option", "--no-such-flag"),
        ),
    ]
    for values, messages in cases:
        with pytest.raises(CommandError, match="bowline-check"):
            installation.upgrade(values)
        errors = installation.errors()
        assert [words for words in messages if words not in errors] == []
        after = {
            key: obj for key, obj in installation.objects(*kinds).items() if key != ("configmaps", "bowline-check")
        }
        assert after == before
    # What is left of a refused upgrade ends with the next one.
    first = installation.mounted()
    installation.upgrade({"config": {"binding": {"workers": 8}}})
    installation.await_no_jobs()
    assert installation.configurations() == [installation.mounted()]
    assert installation.mounted() != first


def test_a_configuration_stays_while_pods_that_use_it_can_be_started(unchecked_release: Installed) -> None:
    """No node runs a new pod, so the rollout lasts until the test ends it; the old ReplicaSet keeps its replica."""
    installation, running = unchecked_release, {"webhook": {"replicas": 1}}
    installation.upgrade(running)
    first = installation.mounted()
    wait_until(lambda: installation.pods(first), "a pod")
    installation.set_ready(*installation.pods(first))
    installation.upgrade(running, {"config": {"binding": {"workers": 8}}})
    second = installation.mounted()
    wait_until(lambda: installation.pods(second), "a pod of the new revision")
    # An upgrade in the middle of a rollout, and the same upgrade again.
    for _ in range(2):
        installation.upgrade(running, {"config": {"binding": {"workers": 9}}})
        third = installation.mounted()
        wait_until(lambda: len(installation.objects("pods")) == 2, "a pod of the newest revision, and the old one")
        assert installation.pods(first)
        assert {first, third} <= set(installation.configurations())
    # A rollback starts pods with their own configuration.
    installation.helm.run(["rollback", RELEASE, f"--namespace={NAMESPACE}", "2"], installation.cluster.kubeconfig)
    assert installation.mounted() == second
    assert {first, second} <= set(installation.configurations())
    # When no pod uses one any more, the next upgrade removes it.
    installation.upgrade({"config": {"binding": {"workers": 9}}})
    wait_until(
        lambda: {obj["spec"]["replicas"] for obj in installation.objects("replicasets").values()} == {0},
        "no replicas",
    )
    installation.upgrade({"config": {"binding": {"workers": 9}}})
    assert installation.configurations() == [third]


def test_replicas_of_an_autoscaler_survive_an_upgrade(unchecked_release: Installed) -> None:
    unchecked_release.upgrade()
    cluster, scaled = unchecked_release.cluster, {"webhook": {"replicas": None}, "reconciler": {"replicas": None}}
    for deployment in ("bowline-webhook", "bowline-reconciler"):
        cluster.api.patch(f"{PATHS['deployments']}/{deployment}/scale", {"spec": {"replicas": 3}})
    unchecked_release.upgrade(scaled, {"config": {"binding": {"workers": 8}}})
    assert [obj["spec"]["replicas"] for obj in unchecked_release.objects("deployments").values()] == [3, 3]
    with pytest.raises(CommandError, match=r"conflict.*\.spec\.replicas"):
        unchecked_release.upgrade({"reconciler": {"replicas": 2}})


PAGES = [CHART.parents[1] / "docs" / "emergency.md", CHART / "templates" / "NOTES.txt"]


def test_documented_upgrades_work_with_a_chart_that_is_newer_than_the_release(
    namespace: None, helm_command: Helm, cluster: Cluster, tmp_path: Path
) -> None:
    """The older chart is this one without a section that it has gained."""
    older = tmp_path / "bowline"
    shutil.copytree(CHART, older)
    for template in ("check-job.yaml", "uninstall-job.yaml", "tests/check.yaml", "NOTES.txt"):
        (older / "templates" / template).unlink()
    values, schema = (older / name for name in ("values.yaml", "values.schema.json"))
    document = yaml.safe_load(values.read_text(encoding="utf-8"))
    del document["hooks"]
    values.write_text(yaml.safe_dump(document), encoding="utf-8")
    document = json.loads(schema.read_text(encoding="utf-8"))
    del document["properties"]["hooks"]
    document["required"].remove("hooks")
    schema.write_text(json.dumps(document), encoding="utf-8")
    release = ChartRelease(RELEASE, older, NAMESPACE, set_values={k: v for k, v in LOCAL.items() if k != "hooks"})
    page = PAGES[0].read_text(encoding="utf-8")
    commands = re.findall(r"helm (upgrade bowline CHART (?:[^`\n\\]|\\\n)+)", page)
    assert len(commands) == 4
    helm_command.upgrade_install(release, cluster.kubeconfig)
    # Helm merges the values; tests/chart/test_emergency_live.py executes each command.
    assert all("--reset-then-reuse-values" in command for command in commands)
    upgrade = next(command for command in commands if "--no-hooks" not in command)
    helm_command.run(shlex.split(upgrade.replace("CHART", str(CHART)).replace("\\\n", " ")), cluster.kubeconfig)
    for path in PAGES:
        assert not re.search(r"--reuse-values", path.read_text(encoding="utf-8"))
