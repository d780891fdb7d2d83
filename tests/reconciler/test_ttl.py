"""The TTL controller of completed requests: what it deletes, and where it continues.

Which requests are due is a table in tests/unit/reconciler/test_ttl.py.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from bowline.framework.config import Binding
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.resources import BINDREQUESTS
from bowline_reconciler.term.ttl import TTLController
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def owned_by(name: str, uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]}


async def requests_left(stage: Stage) -> list[str]:
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
    assert len(await requests_left(stage)) == 4
    stage.clock.shift += 2 * HOUR
    assert await due.round() == 3
    assert await requests_left(stage) == ["fails"]


async def test_the_leader_runs_the_ttl_controller(stage: Stage) -> None:
    soon = Binding(ttl_after_succeeded=timedelta(milliseconds=1), in_flight_timeout=NO_FLIGHT)
    async with stage.working(binding=soon):
        await stage.create_pod()
        await stage.request_bind()
        await stage.request_deleted()
    assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-0"
