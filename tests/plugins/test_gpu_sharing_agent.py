"""The real agent in fake mode: run beside the cluster from its reservation pod's spec, as its ServiceAccount."""

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.workload import LocalProcess
from tests.audit import audit_events, once_logged
from tests.live import Live
from tests.plugins.sharing import RESERVATIONS, SILENT, Shares

# Its own node label, so that no other test's pods match.
NODE = "gpu-node-3"


@pytest.fixture
def shares(pair: Live) -> Iterator[Shares]:
    """A sharing pod on a node with fake GPUs whose reservation has no agent, because kwok does not act as one."""
    shares = Shares(pair)
    assert not has_fake_device(shares), "the node is not labelled yet"
    label(shares, "true")
    pair.until("the label is known", lambda: has_fake_device(shares))
    shares.make("half", tolerations=SILENT)
    shares.ask("half", ["agent"], node=NODE)
    pair.until("a device is reserved", lambda: len(shares.reservations("agent")) == 1)
    yield shares
    label(shares, None)
    shares.delete("half")
    shares.await_release("agent")


def label(shares: Shares, value: str | None) -> None:
    shares.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {names.NODE_FAKE_GPU: value}}})


def has_fake_device(shares: Shares) -> bool:
    """Whether the agent of a new reservation on the node is to report a fake device."""
    shares.make("probe")
    shares.ask("probe", ["probe"], node=NODE)
    shares.live.phase("probe", "Succeeded")
    (reservation,) = shares.reservations("probe")
    shares.delete("probe")
    shares.await_release("probe")
    shares.live.until("its request is gone", lambda: shares.live.not_found(shares.live.request_path("probe")) or None)
    return "--fake" in reservation["spec"]["containers"][0]["args"]


def ready(agent: LocalProcess) -> bool:
    connection = http.client.HTTPConnection(agent.listen, timeout=30)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def agents_writes(shares: Shares) -> list[dict[str, Any]]:
    mine = audit_events(shares.live, names.RESERVATION_SERVICE_ACCOUNT)
    return [event for event in mine if event["verb"] == "patch"]


def test_the_agent_reports_its_device_and_the_pod_is_bound(shares: Shares) -> None:
    agent = shares.run_agent("agent", "agent-first")
    shares.live.phase("half", "Succeeded")
    (reservation,) = shares.reservations("agent")
    assert shares.device("agent") == f"GPU-{reservation['metadata']['uid']}"
    shares.live.until("the agent is ready", lambda: ready(agent))
    # The report may be visible before it is logged.
    before = len(once_logged(shares.live, 1, lambda: agents_writes(shares)))
    agent.process.stop()
    # Restarted, as by a kubelet: the annotation is right, so there is nothing to write.
    again = shares.run_agent("agent", "agent-second")
    shares.live.until("the agent is ready again", lambda: ready(again))
    assert len(agents_writes(shares)) == before
    # Another client removes or changes the annotation: the agent that runs writes it again.
    path, device = f"{RESERVATIONS}/{reservation['metadata']['name']}", shares.device("agent")
    for change in (None, "GPU-wrong"):
        shares.api.patch(path, {"metadata": {"annotations": {names.RESERVED_DEVICE: change}}})
        shares.live.until("it is corrected", lambda: shares.device("agent") == device)
    again.process.stop()
