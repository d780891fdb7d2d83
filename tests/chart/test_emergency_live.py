"""The documented ways to disable and re-enable admission, with the running pair."""

import re
import shlex
from collections.abc import Iterator

import pytest

from bowline.api import names
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import Helm
from bowline.localcluster.pair import Pair
from tests.chart.policies import RECONCILER
from tests.chart.rendering import CHART
from tests.documents import Command, commands, run
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.sharing import Shares

KINDS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicybindings")
WRONG = {names.GPU_FRACTION: "1.5"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Cluster, Pair]]:
    """A separate pair: these tests would disturb any other."""
    values = {
        # A reconciler waits this long after its start before the first rollback.
        "config.binding.inFlightTimeout": "2s",
    }
    with running_pair(2, values) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture
def live(running: tuple[Cluster, Pair]) -> Iterator[Live]:
    """Admission enforced by the running pair. A test that leaves it otherwise uses `disturbed_pair`."""
    with own_namespace(*running) as made:
        yield made


@pytest.fixture
def disturbed_pair(live: Live) -> Iterator[Live]:
    """The same; admission is enforced again after the test."""
    yield live
    switch(live, "Enforce")


def switch(live: Live, mode: str) -> str:
    """Upgrade to the mode and restart both processes, as a rollout does; returns Helm's notes."""
    notes = live.pair.upgrade({"admission.mode": mode})
    restart(live, webhook=mode != "Off")
    return notes


def restart(live: Live, *, webhook: bool = True) -> None:
    """Restart the processes from the release's objects, as a rollout does."""
    live.pair.stop()
    reconciler = live.pair.launch_reconciler()
    if webhook:
        live.pair.launch_webhook().wait_ready()
    reconciler.wait_ready()


def present(live: Live) -> list[str]:
    """The release's objects that can deny."""
    return live.kubectl("get", ",".join(KINDS), "-l", "app.kubernetes.io/name=bowline", "-o", "name").stdout.split()


def create(live: Live, name: str, annotations: dict[str, str]) -> tuple[bool, str]:
    """Create a pod with kubectl; returns whether it was created, and kubectl's output."""
    spec = {"schedulerName": "bowline", "containers": [{"name": "main", "image": "registry.example/app:1"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}
    completion = live.kubectl("create", "-f", "-", objects=body, check=False)
    return completion.returncode == 0, completion.stderr


def until_created(live: Live, name: str, *, created: bool, output: str = "") -> None:
    """Wait until such a pod is created, or denied: the API server watches configurations and policies."""
    numbers = iter(range(1000))

    def found() -> bool:
        was_created, text = create(live, f"{name}-{next(numbers)}", WRONG)
        return was_created is created and output in text

    live.until(f"a wrong pod is {'created' if created else 'denied'}", found)


def until_own_account(live: Live, *, denied: bool) -> None:
    """Wait until the reconciler's account is denied another label of a pod by its policy, or is not."""
    client = live.cluster.api_as(RECONCILER)
    path = f"/api/v1/namespaces/{live.namespace}/pods/own-account?dryRun=All"
    if live.not_found(path):
        live.create_pod("own-account")

    def matches() -> bool:
        try:
            client.patch(path, {"metadata": {"labels": {"app": "x"}}})
        except LocalApiError as error:
            return denied and "bowline-reconciler-pods" in str(error)
        return not denied

    live.until(f"the reconciler's account is {'limited' if denied else 'not limited'}", matches)
    client.close()


def test_one_command_removes_all_that_can_deny_and_two_upgrades_restore_it(live: Live) -> None:
    until_created(live, "before", created=False)
    notes = live.pair.upgrade()
    command = re.search(r"kubectl (delete validatingwebhookconfigurations,\S+ -l \S+)", notes)
    assert command, "the notes contain the command"
    until_own_account(live, denied=True)
    live.cluster.kubectl(*shlex.split(command[1]))
    assert present(live) == []
    until_created(live, "without", created=True)
    until_own_account(live, denied=False)
    # Every other pod is bound as before; a sharing pod was not prepared, and its request reports that.
    live.create_pod("plain")
    live.request_bind("plain")
    live.phase("plain", "Succeeded")
    shares = Shares(live)
    shares.make("unprepared")
    shares.ask("unprepared", ["g"])
    status = live.phase("unprepared", "Failed")["status"]
    assert status["suggestion"] == "DeletePod"
    # Back through Warn, so that nothing is denied while no webhook is ready.
    switch(live, "Warn")
    until_created(live, "warned", created=True, output="Warning: ")
    until_own_account(live, denied=True)
    switch(live, "Enforce")
    until_created(live, "after", created=False)
    shares.share("prepared", "g")
    live.phase("prepared", "Succeeded")


def test_the_commands_of_the_page_disable_and_enable_admission_and_stop_the_reconciler(
    disturbed_pair: Live, helm_command: Helm
) -> None:
    live = disturbed_pair
    folders = (helm_command.binary.parent, live.cluster.assets.path(Tool.KUBECTL).parent)

    def execute(command: Command) -> None:
        run(command.text.replace("CHART", str(CHART)), live.cluster.kubeconfig, *folders)

    delete, off, warn, wait, enforce, renew, stop = commands("docs/emergency.md")
    execute(delete)
    assert present(live) == []
    execute(off)
    assert present(live) == []
    execute(warn)
    restart(live)
    execute(wait)
    until_created(live, "warned", created=True, output="Warning: ")
    execute(enforce)
    restart(live)
    until_created(live, "denied", created=False)
    execute(renew)
    execute(stop)
    deployment = "/apis/apps/v1/namespaces/bowline-system/deployments/bowline-reconciler"
    assert live.cluster.api.get(deployment)["spec"]["replicas"] == 0
