"""The documented ways to disable and re-enable admission, with the running pair."""

import re
from collections.abc import Iterator

import pytest

from bowline.api import names
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import Helm
from tests.chart.policies import RECONCILER
from tests.chart.rendering import CHART
from tests.documents import Command, commands, run
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.sharing import Shares

KINDS = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicybindings")
WRONG = {names.GPU_FRACTION: "1.5"}


@pytest.fixture
def live() -> Iterator[Live]:
    """Admission enforced by a pair of its own: the test would disturb any other."""
    # A reconciler waits so long after its start before the first rollback.
    with running_pair(2, {"config.binding.inFlightTimeout": "2s"}) as running, own_namespace(*running) as live:
        yield live


def restart(live: Live) -> None:
    """Restart the processes from the release's objects, as a rollout does."""
    live.pair.stop()
    live.pair.start()


def present(live: Live) -> list[str]:
    """The release's objects that can deny."""
    return live.kubectl("get", ",".join(KINDS), "-l", "app.kubernetes.io/name=bowline", "-o", "name").stdout.split()


def create(live: Live, name: str, annotations: dict[str, str]) -> tuple[bool, str]:
    """Create a pod with kubectl; returns whether it was created, and kubectl's output."""
    spec = {"schedulerName": "example-scheduler", "containers": [{"name": "main", "image": "registry.example/app:1"}]}
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


def test_the_commands_of_the_page_disable_and_enable_admission_and_stop_the_reconciler(
    live: Live, helm_command: Helm
) -> None:
    folders = (helm_command.binary.parent, live.cluster.assets.path(Tool.KUBECTL).parent)

    def execute(command: Command) -> None:
        run(command.text.replace("CHART", str(CHART)), live.cluster.kubeconfig, *folders)

    delete, off, warn, wait, enforce, renew, stop = commands("docs/emergency.md")
    until_created(live, "before", created=False)
    until_own_account(live, denied=True)
    notes_command = re.search(r"kubectl delete validatingwebhookconfigurations,\S+ -l \S+", live.pair.upgrade())
    assert notes_command, "Helm's notes contain the command"
    assert " ".join(delete.text.split()).startswith(notes_command[0])
    execute(delete)
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
    execute(off)
    assert present(live) == []
    # Back through Warn, so that nothing is denied while no webhook is ready.
    execute(warn)
    restart(live)
    execute(wait)
    until_created(live, "warned", created=True, output="Warning: ")
    until_own_account(live, denied=True)
    execute(enforce)
    restart(live)
    until_created(live, "denied", created=False)
    shares.share("prepared", "g")
    live.phase("prepared", "Succeeded")
    execute(renew)
    execute(stop)
    deployment = "/apis/apps/v1/namespaces/bowline-system/deployments/bowline-reconciler"
    assert live.cluster.api.get(deployment)["spec"]["replicas"] == 0
