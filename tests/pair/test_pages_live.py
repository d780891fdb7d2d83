"""The commands of docs/stuck-pods.md and of docs/metrics.md on the running pair, for a pod that waits."""

import pytest

from bowline.localcluster.assets.recipes import Tool
from tests.documents import Command, commands, run
from tests.live import Live

COMMANDS = [*commands("docs/stuck-pods.md"), *commands("docs/metrics.md")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.text[:60])
def test_the_command_of_a_page_succeeds(pair: Live, command: Command) -> None:
    pair.create_pod("stuck", schedulingGates=[{"name": "example.com/hold"}])
    pair.request_bind("stuck")
    pair.phase("stuck", "Pending")
    text = command.text.replace("NAMESPACE", pair.namespace).replace("POD", "stuck")
    assert run(text, pair.cluster.kubeconfig, pair.cluster.assets.path(Tool.KUBECTL).parent)
