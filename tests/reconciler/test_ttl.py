"""The TTL controller of completed requests: which it deletes, which it keeps, and where it continues."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.client import KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import InfrastructureError
from bowline.kube.resources import BINDREQUESTS
from bowline.testing.builders import bind_request, stored
from bowline.testing.fault_proxy.faults import FaultAnswer
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.ttl import TTLController, completed_at, is_due
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def completed(status: dict[str, Any], owner: str = "pod-uid", **metadata: Any) -> dict[str, Any]:
    return stored(bind_request(uid=owner), **metadata) | {"status": {"phase": "Succeeded", **status}}


def shared(status: dict[str, Any], groups: list[str], owner: str = "pod-uid") -> dict[str, Any]:
    raw = completed(status, owner=owner)
    raw["spec"] |= {"receivedResourceType": "Fraction", "selectedGPUGroups": groups}
    return raw


OLD, NEW = {"completionTime": "2026-01-01T10:59:59Z"}, {"completionTime": "2026-01-01T11:00:01Z"}
WRITTEN = [{"time": "2026-01-01T10:00:00Z"}, {"time": "2026-01-01T11:30:00Z"}]


@pytest.mark.parametrize(
    ("request_", "due"),
    [
        pytest.param(completed(OLD), True, id="after the TTL"),
        pytest.param(completed(NEW), False, id="before the TTL"),
        pytest.param(shared(OLD, ["a", "b"]), False, id="several groups: a scheduler reads the devices"),
        pytest.param(shared(OLD, ["a"]), True, id="one group: the pod's label has it"),
        pytest.param(shared(OLD, ["a", "b"], owner=""), True, id="several groups, no owner"),
        pytest.param(completed(OLD | {"phase": "Failed"}), False, id="Failed, with an owner: deleted with its pod"),
        pytest.param(completed(OLD | {"phase": "Failed"}, owner=""), True, id="Failed, no owner"),
        pytest.param(completed(NEW | {"phase": "Failed"}, owner=""), False, id="Failed, no owner, before the TTL"),
        pytest.param(
            completed(OLD | {"phase": "Failed"}, owner="", finalizers=[names.FINALIZER]),
            False,
            id="Failed, not rolled back",
        ),
        pytest.param(completed(OLD | {"phase": "Pending"}), False, id="Pending"),
        pytest.param(completed(OLD | {"phase": "Pending"}, owner=""), False, id="Pending, no owner"),
        pytest.param(completed(OLD, finalizers=["example.com/keep"]), False, id="held by another finalizer"),
        pytest.param(completed(OLD, deletionTimestamp="2026-01-01T11:00:00Z"), False, id="being deleted"),
        pytest.param(completed({}), False, id="no completion time"),
        pytest.param(completed({"completionTime": "9999-12-31T23:59:59Z"}), False, id="the latest time"),
        pytest.param(completed({"completionTime": "0001-01-01T00:00:00+01:00"}), False, id="the earliest time"),
        pytest.param(completed({}, managedFields=WRITTEN), False, id="foreign CRD: the newest write counts"),
        pytest.param(completed({}, managedFields=WRITTEN[:1]), True, id="foreign CRD: last written before the TTL"),
    ],
)
def test_is_due(request_: dict[str, Any], due: bool) -> None:
    assert is_due(request_, HOUR, NOW) is due


def test_the_newest_write_counts_as_the_completion() -> None:
    assert completed_at(completed({}, managedFields=WRITTEN)) == datetime(2026, 1, 1, 11, 30, tzinfo=UTC)


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
        pytest.param(FaultAnswer(500), 2, id="not answered: the next round starts again"),
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
