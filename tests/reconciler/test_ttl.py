"""The TTL controller of completed requests: which it deletes, which it keeps, and where it continues."""

import itertools
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
from bowline.kube.errors import BadRequest, InfrastructureError
from bowline.kube.resources import BINDREQUESTS
from bowline.testing.builders import bind_request, stored
from bowline.testing.fault_proxy.faults import FaultAnswer
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.ttl import (
    KEPT_FAILED,
    UNREAD,
    Superseded,
    TTLController,
    completed_at,
    is_another,
    is_due,
    is_without_owner,
)
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


async def refuse(_: BindContext) -> Status:
    return Status.fatal("never")


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


async def test_a_failed_request_without_an_owner_is_deleted(stage: Stage) -> None:
    """The garbage collector never deletes it, so its name would be blocked for every later request."""
    async with stage.working(Scripted(pre_bind=refuse)):
        await stage.request_bind("owned", podName="pod", metadata=owned_by("pod", await stage.create_pod()))
        await stage.request_bind("ownerless", podName="pod")
        for name in ("owned", "ownerless"):
            await stage.phase(name, "Failed")
    due = TTLController(stage.client, HOUR, stage.clock, page=1)
    assert await due.round() == 0
    stage.clock.shift += 2 * HOUR
    assert await due.round() == 1
    assert await decisionsleft(stage) == ["owned"]


ENDED = {"completionTime": "2026-01-01T11:58:59Z"}


def left(request: dict[str, Any], **spec: Any) -> dict[str, Any]:
    request["spec"] |= spec
    return request


@pytest.mark.parametrize(
    ("request_", "is_left"),
    [
        pytest.param(completed(ENDED, owner=""), True, id="Succeeded"),
        pytest.param(completed(ENDED), False, id="with its owner: the garbage collector deletes it"),
        pytest.param(
            completed({"completionTime": "2026-01-01T11:59:01Z"}, owner=""),
            False,
            id="the scheduler may not have read it",
        ),
        pytest.param(completed({}, owner=""), False, id="no completion time"),
        pytest.param(left(completed(ENDED | {"phase": "Failed"}, owner=""), podUID="u"), True, id="Failed, of a pod"),
        pytest.param(completed(ENDED | {"phase": "Failed"}, owner=""), False, id="Failed, its pod never existed"),
        pytest.param(left(completed(ENDED | {"phase": "Pending"}, owner=""), podUID="u"), False, id="Pending"),
        pytest.param(completed(ENDED, owner="", finalizers=[names.FINALIZER]), False, id="not rolled back"),
        pytest.param(completed(ENDED, owner="", deletionTimestamp="2026-01-01T11:00:00Z"), False, id="being deleted"),
        pytest.param(left(completed(ENDED, owner=""), podName=""), False, id="without a pod"),
    ],
)
def test_is_without_owner(request_: dict[str, Any], is_left: bool) -> None:
    assert is_without_owner(request_, NOW) is is_left


@pytest.mark.parametrize(
    ("uid", "creation_time", "another"),
    [
        pytest.param("u", "2026-01-01T11:00:00Z", False, id="the same pod"),
        pytest.param("v", "2026-01-01T11:00:00Z", True, id="another one"),
        pytest.param("", "2026-01-01T11:00:00Z", False, id="of an unknown UID, created before the bind"),
        pytest.param("", "2026-01-01T11:59:00Z", True, id="of an unknown UID, created after the bind"),
    ],
)
def test_is_another(uid: str, creation_time: str, another: bool) -> None:
    pod = {"metadata": {"name": "pod", "uid": "u", "creationTimestamp": creation_time}}
    assert is_another(pod, left(completed(ENDED, owner=""), **({"podUID": uid} if uid else {}))) is another


async def test_a_request_that_its_pod_has_left_behind_is_deleted_once_the_pod_is_gone(stage: Stage) -> None:
    """As ``kubectl delete pod --cascade=orphan`` leaves it: its name would be taken for the next pod's request."""
    async with stage.working():
        await stage.create_pod()
        await stage.request_bind("pod", podName="pod")
        await stage.phase("pod", "Succeeded")
    await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", {"metadata": {"ownerReferences": None}})
    due = TTLController(stage.client, HOUR, stage.clock)
    stage.clock.shift += 2 * UNREAD
    assert await due.round() == 0
    await stage.delete_pod("pod")
    assert await due.round() == 1
    assert await decisionsleft(stage) == []


async def test_a_round_continues_where_it_was_interrupted(stage: Stage) -> None:
    async with stage.working():
        for name in ("one", "two", "three"):
            await stage.create_pod(name)
            await stage.request_bind(name)
            await stage.phase(name, "Succeeded")
    stage.clock.shift += 2 * HOUR
    async with stage.wire() as (wire, access), KubeClient(access) as client:
        due = TTLController(client, HOUR, stage.clock, page=1)
        await wire.cut()
        with pytest.raises(InfrastructureError):
            await due.round()
        await wire.restore()
        assert await due.round() == 3
        assert await due.round() == 0
    assert await decisionsleft(stage) == []


async def test_a_recreated_request_is_kept(stage: Stage) -> None:
    async with stage.working():
        await stage.create_pod()
        await stage.request_bind()
        await stage.phase("pod", "Succeeded")
    old = await stage.request()
    await stage.withdraw()
    await stage.request_bind()
    due = TTLController(stage.client, HOUR, stage.clock)
    assert await due.remove(old) is False
    assert await decisionsleft(stage) == ["pod"]


async def test_the_leader_runs_the_ttl_controller(stage: Stage) -> None:
    soon = Binding(ttl_after_succeeded=timedelta(milliseconds=1), in_flight_timeout=NO_FLIGHT)
    async with stage.working(binding=soon):
        await stage.create_pod()
        await stage.request_bind()
        await stage.request_deleted()
    assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-0"


async def test_a_time_outside_pythons_range_ends_no_round(stage: Stage) -> None:
    """The API server stores every string with the format of a time."""
    await stage.create_pod()
    await stage.request_bind()
    odd = {"phase": "Succeeded", "completionTime": "0001-01-01T00:00:00+01:00"}
    await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", {"status": odd}, subresource="status")
    assert (await stage.status())["completionTime"] == odd["completionTime"]
    assert await TTLController(stage.client, HOUR, stage.clock).round() == 0


def failed(number: int, owner: str = "pod-uid", **metadata: Any) -> dict[str, Any]:
    """Return the Failed request of that number: each ended a second after the previous one."""
    status = {"phase": "Failed", "completionTime": f"2026-01-01T11:00:{number:02}Z"}
    raw = completed(status, owner=owner, uid=f"uid-{number}", **metadata)
    raw["metadata"]["name"] = f"decision-{number}"
    return raw


@pytest.mark.parametrize("order", [1, -1], ids=["oldest first", "newest first"])
def test_only_the_newest_failed_requests_of_a_pod_are_kept(order: int) -> None:
    superseded = Superseded()
    superseded_requests = [superseded.add(failed(number), NOW) for number in range(6)[::order]]
    superseded_names = {request["metadata"]["name"] for request in superseded_requests if request is not None}
    assert superseded_names == {f"decision-{number}" for number in range(6 - KEPT_FAILED)}


@pytest.mark.parametrize("pace_s", [1, 0], ids=["one a second", "in one second"])
def test_a_request_that_is_read_again_counts_once(pace_s: int) -> None:
    requests = [failed(number) for number in range(KEPT_FAILED + 1)]
    for number, request in enumerate(requests):
        request["status"]["completionTime"] = f"2026-01-01T11:00:0{number * pace_s}Z"
    for series in itertools.product(requests, repeat=6):
        superseded = Superseded()
        answers = [superseded.add(request, NOW) for request in series]
        removals = {answer["metadata"]["name"] for answer in answers if answer is not None}
        is_complete = all(request in series for request in requests)
        assert removals == ({"decision-0"} if is_complete else set())


@pytest.mark.parametrize(
    "crowd",
    [
        pytest.param([failed(n, owner=f"pod-{n}") for n in range(9)], id="of several pods"),
        pytest.param([failed(n, owner="") for n in range(9)], id="without an owner: the TTL applies instead"),
        pytest.param([failed(n, finalizers=["example.com/keep"]) for n in range(9)], id="held by another client"),
        pytest.param([completed(OLD) for _ in range(9)], id="not failed"),
    ],
)
def test_other_requests_are_not_superseded(crowd: list[dict[str, Any]]) -> None:
    superseded = Superseded()
    assert [superseded.add(request, NOW) for request in crowd] == [None] * 9


def test_a_recently_failed_request_is_kept_for_its_scheduler() -> None:
    superseded = Superseded()
    just_now = datetime(2026, 1, 1, 11, 1, tzinfo=UTC)
    superseded_requests = [superseded.add(failed(number), just_now) for number in range(1, 6)]
    assert superseded_requests == [None] * 5, "all of them ended less than a minute ago"


async def fail_decisions(stage: Stage, count: int) -> None:
    """Let so many decisions for one pod fail."""

    async def cannot(_: BindContext) -> Status:
        return Status.fatal("no luck")

    uid = await stage.create_pod()
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": uid}]
    async with stage.working(Scripted(pre_bind=cannot)):
        for number in range(count):
            await stage.request_bind(
                f"decision-{number}", podName="pod", podUID=uid, metadata={"ownerReferences": owner}
            )
            await stage.phase(f"decision-{number}", "Failed")


async def test_superseded_failed_requests_of_a_living_pod_are_removed(stage: Stage) -> None:
    await fail_decisions(stage, KEPT_FAILED + 2)
    sweep = TTLController(stage.client, HOUR, stage.clock)
    assert await sweep.round() == 0
    stage.clock.passed += timedelta(minutes=2)
    await sweep.round()
    assert len(await decisionsleft(stage)) == KEPT_FAILED


@pytest.mark.parametrize("answer", [FaultAnswer(410), FaultAnswer(400)], ids=["expired", "of another API server"])
async def test_a_list_that_starts_again_counts_no_request_twice(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], answer: FaultAnswer
) -> None:
    """The continue token of the second page is rejected: the first page is read again."""
    proxy, access = proxy_route
    await fail_decisions(stage, KEPT_FAILED)
    stage.clock.passed += timedelta(minutes=2)
    async with KubeClient(access) as client:
        sweep = TTLController(client, HOUR, stage.clock, page=2)
        proxy.inspect(CallMatch(("list",), "bindrequests"), lambda call: lists.append(call.name))
        lists: list[str] = []
        proxy.add(FaultRule(answer, CallMatch(("list",), "bindrequests"), nth=3))
        for _ in range(2):
            with suppress(BadRequest):
                await sweep.round()
        assert len(lists) > 3
    assert len(await stage.client.list_all(BINDREQUESTS, stage.namespace)) == KEPT_FAILED


@pytest.mark.parametrize(
    ("answer", "left_count"),
    [
        pytest.param(FaultAnswer(403), 1, id="denied: the round goes on to its end"),
        pytest.param(FaultAnswer(500), 2, id="not answered: the page is read again"),
    ],
)
async def test_a_delete_that_fails_costs_no_other_request(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], answer: FaultAnswer, left_count: int
) -> None:
    """The newest decisions of the pod are kept."""
    proxy, access = proxy_route
    await fail_decisions(stage, KEPT_FAILED + 2)
    stage.clock.passed += timedelta(minutes=2)
    async with KubeClient(access) as client:
        sweep = TTLController(client, HOUR, stage.clock)
        proxy.add(FaultRule(answer, CallMatch(("delete",), "bindrequests"), nth=1))
        with suppress(InfrastructureError):
            assert await sweep.round() == 2 - left_count
        assert len(await decisionsleft(stage)) == KEPT_FAILED + left_count
        assert await sweep.round() == left_count
    assert set(await decisionsleft(stage)) == {f"decision-{number}" for number in range(2, KEPT_FAILED + 2)}
