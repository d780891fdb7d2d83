"""`bowline check` on a real release: nothing is missing, then each part is broken in turn and named."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline_cli.check import check as check_release
from bowline_cli.cluster import connected
from bowline_cli.kubeconfig import ClusterError
from bowline_cli.main import main
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.usefixtures("kubectl_in_path")
NAMESPACE = "bowline-system"
WELL = (
    "bowline-webhook: bowline:0.1.0\nbowline-reconciler: bowline:0.1.0\n"
    f"Bowline in namespace {NAMESPACE}: all is well\n"
)
HOOKS = "/apis/admissionregistration.k8s.io/v1"
ACCOUNT = "/api/v1/namespaces/kai-resource-reservation/serviceaccounts/bowline-gpu-agent"


@dataclass(frozen=True, slots=True)
class Completion:
    """How the command has ended, and what it has printed."""

    status: int
    output: str
    error: str


@dataclass(frozen=True, slots=True)
class Release:
    """The release, and the command in this process: to start Python costs more than a check."""

    cluster: Cluster
    pair: Pair
    capture: pytest.CaptureFixture[str]

    def arguments(self, *arguments: str, kubeconfig: object = "") -> list[str]:
        return ["check", f"--kubeconfig={kubeconfig or self.cluster.kubeconfig}", *arguments]

    def check(self, *arguments: str, kubeconfig: object = "") -> Completion:
        self.capture.readouterr()
        status = main(self.arguments(*arguments, kubeconfig=kubeconfig))
        return Completion(status, *self.capture.readouterr())

    def report(self) -> str:
        """The report of a release that lacks something."""
        completion = self.check()
        assert (completion.status, completion.error) == (1, ""), completion
        assert all(line.startswith("missing: ") and "; next: " in line for line in completion.output.splitlines())
        return completion.output

    def assert_well(self) -> None:
        assert self.check(f"--wait={LIMIT_S}s") == Completion(0, WELL, "")

    @contextmanager
    def repaired(self, repair: Callable[[], object]) -> Iterator[None]:
        """A release that is repaired and well after the block."""
        try:
            yield
        finally:
            repair()
        self.assert_well()


@pytest.fixture
def release(pair_cluster: tuple[Cluster, Pair], capsys: pytest.CaptureFixture[str]) -> Release:
    """The release as a test breaks and repairs it."""
    return Release(*pair_cluster, capsys)


def test_nothing_is_missing_from_a_healthy_release(release: Release) -> None:
    release.assert_well()
    document = json.loads(release.check("-o", "json").output)
    assert (document["well"], document["missing"], document["notChecked"]) == (True, [], [])
    assert [f"{name}: {image}" for name, image in document["images"].items()] == WELL.splitlines()[:-1]


def test_a_webhook_that_is_stopped_and_a_missing_ca_bundle(release: Release) -> None:
    cluster, pair = release.cluster, release.pair

    def restart() -> None:
        pair.launch_webhook().wait_ready()

    with release.repaired(restart):
        assert pair.webhook is not None
        pair.webhook.stop()
        text = release.report()
        assert "missing: an answer of the webhook (500 InternalError: " in text
        assert 'failed calling webhook "pods.bowline.dev"' in text
        path = f"{HOOKS}/validatingwebhookconfigurations/bowline-webhook"
        hooks = cluster.api.get(path)["webhooks"]
        for hook in hooks:
            del hook["clientConfig"]["caBundle"]
        cluster.api.patch(path, {"webhooks": hooks})
        text = f"caBundle of {len(hooks)} of {len(hooks)} webhooks in validatingwebhookconfiguration/bowline-webhook"
        assert text in release.report()


def test_parts_that_are_deleted_are_named_and_an_upgrade_restores_them(release: Release) -> None:
    cluster = release.cluster
    with release.repaired(release.pair.upgrade):
        cluster.api.delete(ACCOUNT)
        assert "missing: ServiceAccount kai-resource-reservation/bowline-gpu-agent" in release.report()
        for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
            cluster.api.delete(f"{HOOKS}/{kind}s/bowline-webhook")
            text = f"missing: {kind}/bowline-webhook; next: helm upgrade bowline CHART -n {NAMESPACE}"
            assert text in release.report()
        # Now no pod is mutated, and without the policy's binding none is denied.
        cluster.api.delete(f"{HOOKS}/validatingadmissionpolicybindings/bowline-pods")
        assert "missing: a binding of ValidatingAdmissionPolicy bowline-pods" in release.report()
        texts = ("the denial of a pod", "the mutation of a pod with a GPU share")
        wait_until(lambda: all(map(release.report().__contains__, texts)), "the API server has noticed the deletions")


def test_a_reconciler_that_is_stopped_and_wait_until_another_one_leads(release: Release) -> None:
    pair = release.pair
    with release.repaired(lambda: None):
        pair.reconcilers[0].stop()
        text = release.report()
        assert "a reconciler that holds Lease bowline-reconciler" in text
        assert (
            "next: helm upgrade bowline CHART -n bowline-system --reset-then-reuse-values --set reconciler.r" in text
        )
        waiting = subprocess.Popen(
            [sys.executable, "-m", "bowline_cli", *release.arguments("--wait=2m")], stdout=subprocess.PIPE, text=True
        )
        pair.launch_reconciler().wait_ready()
        output, _ = waiting.communicate(timeout=2 * LIMIT_S)
        assert (waiting.returncode, output) == (0, WELL)


def test_an_api_server_that_does_not_answer_is_unknown_and_waited_for(
    release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = release.cluster
    with connected(argparse.Namespace(kubeconfig=str(cluster.kubeconfig), context=None)) as api:
        cluster.stop_apiserver()
        assert release.check().status == 2
        with pytest.raises(ClusterError, match="cannot be reached"):
            check_release(api, NAMESPACE, timedelta())
        with ThreadPoolExecutor() as pool:
            status = pool.submit(check_release, api, NAMESPACE, timedelta(seconds=LIMIT_S))
            cluster.start_apiserver()
            assert status.result() == 0
    assert capsys.readouterr().out == WELL


def test_what_a_user_may_not_read_is_not_checked_and_nothing_is_missing(release: Release) -> None:
    cluster = release.cluster
    cluster.kubectl("create", "serviceaccount", "reader")
    kubeconfig = cluster.service_account_kubeconfig("default", "reader")
    nothing = release.check(kubeconfig=kubeconfig)
    assert nothing.status == 0
    assert "not checked: missing permission: 403 Forbidden: deployments.apps is forbidden" in nothing.output
    assert nothing.output.endswith("all is well, as far as it was checked\n")
    cluster.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader")
    wait_until(lambda: "deployments" not in release.check(kubeconfig=kubeconfig).output, "the account may view")
    view = release.check(kubeconfig=kubeconfig)
    assert view.status == 0
    assert 'cannot create resource "pods"' in view.output
