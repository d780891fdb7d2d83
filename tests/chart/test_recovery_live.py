"""The ways back of docs/emergency.md: each fault is caused with the real Helm on a real API server.

No kubelet runs, so a Deployment with replicas never becomes ready, as with an image that cannot be pulled.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import CommandError, LocalApiError
from bowline.localcluster.helm import Helm
from bowline.localcluster.spec import ClusterSpec
from tests.chart.objects import PODS, pod
from tests.chart.presets import LOCAL
from tests.chart.rendering import CHART, NAMESPACE
from tests.chart.shell import Shell
from tests.documents import commands
from tests.reconciler.test_foreign_crd import THEIRS
from tests.waiting import wait_until

# Each test waits for Helm's timeouts.
pytestmark = pytest.mark.long

# After those of `test_emergency_live.py`.
COMMANDS = [command.text for command in commands("docs/emergency.md")][7:]
HISTORY, FAILED, SUPERSEDED, FORCED_BACK, FORCED_ON, JOB, JOB_PODS, REMOVAL, DENIALS, AGAIN, OTHER = COMMANDS
UPGRADE = ("upgrade", "bowline", str(CHART), f"--namespace={NAMESPACE}", "--reset-then-reuse-values", "--wait")
# A webhook that never starts.
# The rollback has as long: controllers of a busy machine take seconds.
BROKEN = ("--set=image.tag=broken", "--set=webhook.replicas=1", "--timeout=20s")
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
# What belongs to no namespace.
LEFT = (
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,clusterroles,clusterrolebindings,priorityclasses"
)
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindrequests.scheduling.run.ai"


class Release(Shell):
    """The shell of whoever upgrades the release."""

    def upgrade(self, *options: str) -> None:
        self.helm.run([*UPGRADE, *options], self.cluster.kubeconfig)

    def images(self) -> set[str]:
        """The images of both Deployments."""
        items = self.cluster.api.get(DEPLOYMENTS)["items"]
        return {item["spec"]["template"]["spec"]["containers"][0]["image"] for item in items}

    def newest(self) -> Any:
        """The newest revision of the release."""
        history = ["history", "bowline", f"--namespace={NAMESPACE}", "--output=json"]
        return json.loads(self.helm.run(history, self.cluster.kubeconfig))[-1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec(kwok=False)) as local_cluster:
        yield local_cluster


@pytest.fixture
def shell(cluster: Cluster, helm_command: Helm, tmp_path: Path) -> Iterator[Release]:
    """The release of version 0.1.0; nothing of any release is left afterwards."""
    shell = Release.at(tmp_path, cluster, helm_command, LOCAL)
    shell.run(AGAIN)
    assert shell.images() == {"bowline:0.1.0"}
    yield shell
    namespaces = f"namespace/{NAMESPACE} namespace/other-system namespace/kai-resource-reservation"
    cluster.kubectl("delete", "--ignore-not-found", *namespaces.split(), "crd/bindrequests.scheduling.run.ai")
    cluster.kubectl("delete", LEFT, "-l", "app.kubernetes.io/name=bowline")


def test_after_an_automatic_rollback_no_command_brings_the_failed_version_back(shell: Release) -> None:
    with pytest.raises(CommandError, match="has been rolled back"):
        shell.upgrade(*BROKEN, "--rollback-on-failure")
    assert "Rollback to 1" in shell.run(HISTORY)
    assert (shell.newest()["status"], shell.images()) == ("deployed", {"bowline:0.1.0"})
    for command in (FAILED, SUPERSEDED):
        shell.run(command)
        assert shell.images() == {"bowline:0.1.0"}


def test_a_failed_upgrade_is_left_by_the_deployed_revision_however_often_it_failed(shell: Release) -> None:
    for _ in range(2):
        with pytest.raises(CommandError, match="not ready"):
            shell.upgrade(*BROKEN)
    assert shell.images() == {"bowline:broken"}
    shell.run(FAILED)
    assert (shell.newest()["status"], shell.images()) == ("deployed", {"bowline:0.1.0"})


def test_beside_kai_the_flag_leads_out_of_a_rollback_that_has_failed_as_well(shell: Release) -> None:
    shell.upgrade("--set=image.tag=0.2.0")
    apply_as_kai(shell.cluster)
    with pytest.raises(CommandError, match=r"error occurred while rolling back.*conflict"):
        shell.upgrade("--set=image.tag=0.3.0", "--rollback-on-failure")
    assert shell.newest()["status"] == "failed"
    shell.run(FORCED_BACK)
    assert (shell.newest()["status"], shell.images()) == ("deployed", {"bowline:0.2.0"})
    apply_as_kai(shell.cluster)
    shell.run(FORCED_ON)
    assert (shell.newest()["status"], shell.images()) == ("deployed", {"bowline:0.2.0"})
    # The revision that has failed is `superseded` as well, and newer than the one before.
    assert shell.run(HISTORY).count("failed: conflict") >= 1
    shell.upgrade("--set=image.tag=0.4.0")
    shell.run(SUPERSEDED)
    assert shell.images() == {"bowline:0.2.0"}
    # The automatic rollback has the flag of its upgrade.
    apply_as_kai(shell.cluster)
    with pytest.raises(CommandError, match="has been rolled back"):
        shell.upgrade(*BROKEN, "--rollback-on-failure", "--force-conflicts")
    assert (shell.newest()["status"], shell.images()) == ("deployed", {"bowline:0.2.0"})


def apply_as_kai(cluster: Cluster) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=yaml.safe_dump(THEIRS))


def test_the_reason_of_a_check_that_does_not_start_is_in_the_events(shell: Release) -> None:
    quota = {"metadata": {"name": "cpu"}, "spec": {"hard": {"limits.cpu": "4"}}}
    # The controller of quotas does not run: it would write the status.
    url = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    shell.cluster.api.post(url, quota)
    shell.cluster.api.patch(
        f"{url}/cpu/status", {"status": {"hard": {"limits.cpu": "4"}, "used": {"limits.cpu": "0"}}}
    )
    with pytest.raises(CommandError, match="bowline-check"):
        shell.upgrade("--set=hooks.check=true", "--timeout=8s")
    wait_until(lambda: "must specify limits.cpu" in shell.run(JOB), "the Job controller reports why there is no pod")
    shell.run(JOB_PODS)
    job = shell.cluster.api.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/bowline-check")
    assert job["spec"]["activeDeadlineSeconds"] < 120


def test_an_install_that_has_failed_in_its_check_is_removed_or_repeated(shell: Release) -> None:
    shell.helm.uninstall("bowline", NAMESPACE, shell.cluster.kubeconfig)
    hooks = ("--set=hooks.check=true", "--set=hooks.uninstall=true", "--timeout=8s")
    for is_removed in (False, True):
        with pytest.raises(CommandError, match="bowline-check"):
            shell.upgrade("--install", "--values", str(shell.folder / "values.yaml"), *hooks)
        assert shell.newest()["status"] == "failed"
        if is_removed:
            with pytest.raises(AssertionError, match="bowline-uninstall"):
                shell.run(REMOVAL.replace("--no-hooks", "--timeout=8s"))
            with pytest.raises(AssertionError, match="has no deployed releases"):
                shell.run(AGAIN)
            shell.run(REMOVAL)
        shell.run(AGAIN)
        assert (shell.newest()["status"], shell.images()) == ("deployed", {"bowline:0.1.0"})
        shell.helm.run(["uninstall", "bowline", f"--namespace={NAMESPACE}"], shell.cluster.kubeconfig)


def test_the_release_is_installed_again_after_its_namespace_was_deleted(shell: Release) -> None:
    cluster = shell.cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=110s")
    with pytest.raises(CommandError, match="not found"):
        shell.helm.uninstall("bowline", NAMESPACE, cluster.kubeconfig)
    with pytest.raises(LocalApiError, match=r"pods\.bowline\.dev"):
        cluster.api.post(PODS, pod("denied", "example-scheduler"))
    shell.run(DENIALS)
    wait_until(lambda: is_created(cluster), "a pod, when no hook is left")
    shell.run(AGAIN)
    assert shell.images() == {"bowline:0.1.0"}
    assert cluster.api.get(CRD)["metadata"]["annotations"]["meta.helm.sh/release-name"] == "bowline"
    shell.helm.uninstall("bowline", NAMESPACE, cluster.kubeconfig)
    kinds = "validatingwebhookconfigurations,validatingadmissionpolicies,clusterroles,deployments"
    left = cluster.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/name=bowline", "-o", "name").stdout
    assert left == ""


def is_created(cluster: Cluster) -> bool:
    try:
        cluster.api.post(PODS, pod("admitted", "example-scheduler"))
    except LocalApiError:
        return False
    return True


def test_an_install_under_another_name_takes_over_what_an_uninstall_keeps(shell: Release) -> None:
    shell.helm.uninstall("bowline", NAMESPACE, shell.cluster.kubeconfig)
    with pytest.raises(AssertionError, match="invalid ownership metadata"):
        shell.run(OTHER.replace("--take-ownership", ""))
    shell.run(OTHER)
    annotations = shell.cluster.api.get(CRD)["metadata"]["annotations"]
    assert annotations["meta.helm.sh/release-name"] == "other"
