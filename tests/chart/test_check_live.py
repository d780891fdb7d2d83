"""Installs and upgrades whose configuration is checked first, by the processes' own code, and what becomes of a
configuration that running pods use.

The hook's Job is created by Helm, its pod by the Job controller; only the kubelet is replaced (`tests.chart.jobs`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import ChartRelease, Helm
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


def test_an_invalid_configuration_is_never_installed_and_one_that_pods_use_stays(
    helm_command: Helm, cluster: Cluster
) -> None:
    """The namespace does not exist before: Helm creates it. What is installed in it ends with it."""
    release = Installed(helm_command, cluster, CHECKED)
    try:
        with running_jobs(cluster, NAMESPACE):
            with pytest.raises(CommandError, match="bowline-check"):
                release.upgrade({"config": INVALID})
            errors = release.errors()
            words = ("no_such_plugin", "is no plugin; known:", "plugins[1].args.x", "pluginOrder")
            assert [word for word in words if word not in errors] == []
            kinds = ("deployments", "serviceaccounts", "services", "customresourcedefinitions")
            assert not release.objects(*kinds, "validatingwebhookconfigurations")
            cluster.api.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": RESTRICTED}})
            # The same command with a valid configuration.
            release.upgrade()
            names = {name for _, name in release.objects("deployments")}
            assert names == {"bowline-webhook", "bowline-reconciler"}
            release.await_no_jobs()
            a_refused_upgrade_changes_nothing_and_lists_every_error(release)
            a_configuration_stays_while_pods_that_use_it_can_be_started(Installed(helm_command, cluster, LOCAL))
            helm_command.uninstall(RELEASE, NAMESPACE, cluster.kubeconfig)
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def a_refused_upgrade_changes_nothing_and_lists_every_error(installation: Installed) -> None:
    kinds = ("configmaps", "deployments", "services", "clusterroles", "validatingwebhookconfigurations")
    installation.await_settled()
    before = installation.objects(*kinds)
    options = {"reconciler": {"extraArgs": ["--no-such-option"]}, "webhook": {"extraArgs": ["--no-such-flag"]}}
    with pytest.raises(CommandError, match="bowline-check"):
        installation.upgrade(options)
    errors = installation.errors()
    assert "--no-such-option" in errors, "an error of each process"
    assert "--no-such-flag" in errors
    after = {key: obj for key, obj in installation.objects(*kinds).items() if key != ("configmaps", "bowline-check")}
    assert after == before
    # What is left of a refused upgrade ends with the next one.
    first = installation.mounted()
    installation.upgrade({"config": {"binding": {"workers": 8}}})
    installation.await_no_jobs()
    assert installation.configurations() == [installation.mounted()]
    assert installation.mounted() != first


def a_configuration_stays_while_pods_that_use_it_can_be_started(installation: Installed) -> None:
    """No node runs a new pod, so the rollout lasts until the test ends it; the old ReplicaSet keeps its replica."""
    running = {"webhook": {"replicas": 1}}
    installation.upgrade(running)
    first = installation.mounted()
    wait_until(lambda: installation.pods(first), "a pod")
    installation.set_ready(*installation.pods(first))
    installation.upgrade(running, {"config": {"binding": {"workers": 8}}})
    second = installation.mounted()
    wait_until(lambda: installation.pods(second), "a pod of the new revision")
    # An upgrade in the middle of a rollout.
    installation.upgrade(running, {"config": {"binding": {"workers": 9}}})
    third = installation.mounted()
    wait_until(lambda: len(installation.objects("pods")) == 2, "a pod of the newest revision, and the old one")
    assert installation.pods(first)
    assert {first, third} <= set(installation.configurations())
    # A rollback starts pods with their own configuration.
    installation.helm.run(["rollback", RELEASE, f"--namespace={NAMESPACE}"], installation.cluster.kubeconfig)
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
