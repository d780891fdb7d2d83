"""The TTL controller of completed requests: what it deletes, and where it continues.

Which requests are due is a table in tests/unit/reconciler/test_ttl.py.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.framework.config import Binding
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.client import KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import InfrastructureError
from bowline.kube.resources import BINDREQUESTS
from bowline.testing.fault_proxy.faults import FaultAnswer
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.term.ttl import TTLController
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def owned_by(name: str, uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]}


async def decisionsleft(stage: Stage) -> list[str]:
    return [request["metadata"]["name"] for request in await stage.client.list_all(BINDREQUESTS, stage.namespace)]


async def test_succeeded_requests_are_deleted_and_failed_ones_kept_with_their_pods(stage: Stage) -> None:
    async def by_name(ctx: BindContext) -> Status:
        return Status.fatal("never") if ctx.request.key.name == "fails" else Status.ok()

    async with stage.working(Scripted(pre_bind=by_name)):
        for name in ("one", "two", "three", "fails"):
            await stage.request_bind(name, metadata=owned_by(name, await stage.create_pod(name)))
        for name in ("one", "two", "three", "fails"):
            await stage.phase(name, "Succeeded", "Failed")
    # One object per page: the round continues from page to page.
    due = TTLController(stage.client, HOUR, stage.clock, page=1)
    assert await due.round() == 0
    assert len(await decisionsleft(stage)) == 4
    stage.clock.shift += 2 * HOUR
    assert await due.round() == 3
    assert await decisionsleft(stage) == ["fails"]


async def test_the_leader_runs_the_ttl_controller(stage: Stage) -> None:
    soon = Binding(ttl_after_succeeded=timedelta(milliseconds=1), in_flight_timeout=NO_FLIGHT)
    async with stage.working(binding=soon):
        await stage.create_pod()
        await stage.request_bind()
        await stage.request_deleted()
    assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-0"


@pytest.mark.parametrize(
    ("answer", "left_count"),
    [
        pytest.param(FaultAnswer(403), 1, id="denied: the round goes on to its end"),
        pytest.param(FaultAnswer(500), 2, id="without an answer: the next round repeats it"),
    ],
)
async def test_a_delete_that_fails_costs_no_other_request(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], answer: FaultAnswer, left_count: int
) -> None:
    proxy, access = proxy_route
    async with stage.working():
        for name in ("one", "two"):
            await stage.create_pod(name)
            await stage.request_bind(name)
            await stage.phase(name, "Succeeded")
    stage.clock.shift += 2 * HOUR
    async with KubeClient(access) as client:
        due = TTLController(client, HOUR, stage.clock)
        proxy.add(FaultRule(answer, CallMatch(("delete",), "bindrequests"), nth=1))
        with suppress(InfrastructureError):
            assert await due.round() == 2 - left_count
        assert len(await decisionsleft(stage)) == left_count
        assert await due.round() == left_count
    assert await decisionsleft(stage) == []
