"""The commands of docs/stuck-pods.md and of docs/metrics.md on the running pair, for a pod that waits."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.documents import Command, commands, run
from tests.live import Live
from tests.pairs import own_namespace

COMMANDS = [*commands("docs/stuck-pods.md"), *commands("docs/metrics.md")]


@pytest.fixture(scope="module")
def stuck_pod(pair_cluster: tuple[Cluster, Pair]) -> Iterator[Live]:
    """A pod whose wait is reported, which takes seconds: the commands only read it."""
    with own_namespace(*pair_cluster) as live:
        live.create_pod("stuck", schedulingGates=[{"name": "example.com/hold"}])
        live.request_bind("stuck")
        live.phase("stuck", "Pending")
        yield live


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.text[:60])
def test_the_command_of_a_page_succeeds(stuck_pod: Live, command: Command) -> None:
    text = command.text.replace("NAMESPACE", stuck_pod.namespace).replace("POD", "stuck")
    assert run(text, stuck_pod.cluster.kubeconfig, stuck_pod.cluster.assets.path(Tool.KUBECTL).parent)
