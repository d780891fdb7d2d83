"""The results for callers of the group's controller when its pass fails. All else needs a real API server."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey, ObjectRef, ObjectUID, ResourceVersion
from bowline.framework.binding.handle import Reconcile
from bowline.framework.binding.metrics import PluginMetrics
from bowline.framework.plugin_status import Code
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.errors import ApiStatus, Conflict, Forbidden, NoResponse
from bowline.kube.late_writes import LateWrites, current_writes, noting
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.gpu_sharing.idle_groups import IdleGroups
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.reservation import Blocked, DeviceRequest, Held, Lost, Pending, Reservation, User
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.reservation_pod import ReservationSpec
from bowline.plugins.gpu_sharing.rules import least_portion, used_portion
from bowline.plugins.gpu_sharing.statuses import first_failure
from bowline.plugins.gpu_sharing.tests.pods import claim, reservation, sharing_pod, user
from bowline.runtime.clock import Clock, SystemClock
from bowline.testing.clock import SteppedClock
from bowline.testing.handles import handle_for

NO_CLIENT: Any = None
TIMEOUT = timedelta(seconds=40)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class FailingSite(ReservationClient):
    """Raises an error in place of every reply."""

    error: Exception | None = None

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        assert self.error is not None
        raise self.error


@dataclass(frozen=True, slots=True)
class JoinedSite(ReservationClient):
    """Has one reservation with a device; records who has joined, and which writes are noted meanwhile."""

    touched: list[LateWrites | None] = field(default_factory=list)
    exists: bool = True
    bound: dict[ObjectKey, Decimal] = field(default_factory=dict)

    async def portions(self, group: str, node: str) -> dict[ObjectKey, Decimal]:
        return self.bound

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        return [reservation(group=group, device="GPU-1")]

    async def users(self, group: str, node: str = "") -> list[User]:
        return [user()]

    async def touch(self, reservation: Reservation) -> Reservation | None:
        self.touched.append(current_writes())
        return reservation if self.exists else None


@dataclass(frozen=True, slots=True)
class EmptySite(ReservationClient):
    """Has no reservation; records which are created."""

    created: list[DeviceRequest] = field(default_factory=list)

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        return []

    async def users(self, group: str, node: str = "") -> list[User]:
        return []

    async def create(
        self, claim: DeviceRequest, name: str = "", expected_devices: Collection[str] = ()
    ) -> Reservation | str:
        self.created.append(claim)
        return reservation()


class Passes:
    """Runs a pass for every key that is added, and stores its result."""

    def __init__(self) -> None:
        self.running: list[asyncio.Task[timedelta | None]] = []
        self.keys: list[ObjectKey] = []

    def worker(self, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        def add(key: ObjectKey) -> None:
            self.keys.append(key)
            self.running.append(asyncio.ensure_future(reconcile(key)))

        return add

    async def results(self) -> list[Any]:
        return await asyncio.gather(*self.running, return_exceptions=True)


class SetClock(SteppedClock):
    """A clock that can also be set: no time passes by that."""

    by = timedelta()

    def now(self) -> datetime:
        return super().now() + self.by


class SilentSite(ReservationClient):
    """Has one reservation, whose agent reports nothing."""

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        return [reservation()]

    async def users(self, group: str, node: str = "") -> list[User]:
        return []

    async def remove(self, reservation: Reservation) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CountingSite(ReservationClient):
    """Has one reservation that has reported its device, with one user; records reads and deletions."""

    reads: list[str] = field(default_factory=list)

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        return [reservation(group=group, device="GPU-1")]

    async def users(self, group: str, node: str = "") -> list[User]:
        self.reads.append(f"users of {group} on {node}")
        return [user()]

    async def portions(self, group: str, node: str) -> dict[ObjectKey, Decimal]:
        return {}

    async def touch(self, reservation: Reservation) -> Reservation | None:
        return reservation


def sharing(name: str) -> Any:
    """A sharing pod as the watch caches it."""
    return {"metadata": {"name": name, "namespace": "ns", "labels": {"runai-gpu-group": "g1"}}}


def owner(passes: Passes, error: Exception) -> GroupController:
    return owner_of(passes, FailingSite(NO_CLIENT, ReservationSpec("res", "image"), "", error), SystemClock())


def owner_of(
    passes: Passes,
    site: ReservationClient,
    clock: Clock,
    idle: IdleGroups | None = None,
    registry: CollectorRegistry | None = None,
) -> GroupController:
    metrics = PluginMetrics("gpu_sharing", registry or CollectorRegistry())
    handle = replace(handle_for("gpu_sharing", NO_CLIENT, clock=clock), worker=passes.worker)
    controller = GroupController(handle, site, TIMEOUT, SharingMetrics(metrics), idle or IdleGroups())
    controller.begin()
    return controller


@pytest.mark.parametrize(
    ("error", "is_reported"),
    [
        pytest.param(NoResponse("no answer"), False, id="no reply from the API server: the reservation is retried"),
        pytest.param(KeyError("spec"), True, id="a bug of ours: reported, and no caller is left waiting"),
    ],
)
async def test_a_failed_pass_is_reported_to_its_requester(error: Exception, is_reported: bool) -> None:
    passes = Passes()
    controller = owner(passes, error)
    with pytest.raises(type(error)):
        await controller.claim([claim()])
    with pytest.raises(type(error)):
        await controller.release(claim().request, ObjectUID("uid-a"), ["g1"], "n1")
    assert [isinstance(result, Exception) for result in await passes.results()] == [is_reported, is_reported]


@pytest.mark.parametrize("is_withdrawn", [True, False])
async def test_nothing_is_reserved_for_a_request_that_is_withdrawn_while_it_is_queued(is_withdrawn: bool) -> None:
    passes, site = Passes(), EmptySite(NO_CLIENT, ReservationSpec("res", "image"), "")
    claiming = asyncio.ensure_future(owner_of(passes, site, SystemClock()).claim([claim()]))
    for _ in range(2):  # its query is queued, and the pass has not begun
        await asyncio.sleep(0)
    assert passes.running
    if is_withdrawn:
        claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await passes.results()
    assert site.created == ([] if is_withdrawn else [claim()])


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1)])
async def test_setting_the_clock_does_not_change_an_agents_timeout(by: timedelta) -> None:
    passes, clock = Passes(), SetClock()
    controller = owner_of(passes, SilentSite(NO_CLIENT, ReservationSpec("res", "image"), ""), clock)
    waits = claim(awaited_uid=reservation().uid)
    assert isinstance((await controller.claim([waits]))[0], Pending)
    clock.by = by
    assert isinstance((await controller.claim([waits]))[0], Pending)
    assert (await passes.results())[-1] == TIMEOUT
    clock.step(TIMEOUT - SECOND)
    assert controller.time_left(reservation()) == SECOND, "also for who joins now"
    clock.step(SECOND)
    (lost,) = await controller.claim([waits])
    assert isinstance(lost, Lost)
    assert lost.is_overdue


class NoPasses(Passes):
    """Accepts keys and runs nothing, as with a hanging API server."""

    def worker(self, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        return lambda _: None


@pytest.mark.looptime
async def test_the_wait_for_the_controller_is_charged_to_the_api_server() -> None:
    waiting = owner(NoPasses(), NoResponse("unused"))
    account = TimeAccount(asyncio.get_running_loop().time)
    with accounting(account), pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await waiting.claim([claim()])
    assert [account.caller_s, account.api_s] == pytest.approx([0, 30])


async def test_an_ended_pod_causes_no_list_while_the_cache_has_another_user() -> None:
    passes, idle = Passes(), IdleGroups()
    site = CountingSite(NO_CLIENT, ReservationSpec("res", "image"), "")
    controller = owner_of(passes, site, SystemClock(), idle)
    for name in ("a", "b"):
        idle.user_changed(None, sharing(name))
    idle.user_changed(sharing("a"), None)
    controller.enqueue(["g1"])
    assert await passes.results() == [None]
    assert site.reads == []
    # Without another user one read decides, of the pods of one node.
    idle.user_changed(sharing("b"), None)
    controller.enqueue(["g1"])
    await passes.results()
    assert site.reads == ["users of g1 on n1"]


class ForbiddenClient:
    """Lists nothing."""

    async def list_all(self, *_: Any, **__: Any) -> Any:
        raise Forbidden(ApiStatus(403, "Forbidden", "pods is forbidden"))


async def test_scaling_pods_that_cannot_be_listed_block_nothing() -> None:
    client: Any = ForbiddenClient()
    assert await ReservationClient(client, ReservationSpec("res", "image"), "kai-scale-adjust").scaling_up() is None


def test_a_wait_for_a_scaling_pod_is_short_and_suggests_nothing() -> None:
    by = ObjectRef("v1", "Pod", ObjectKey("kai-scale-adjust", "wants-gpu"), ObjectUID("u"), ResourceVersion("1"))
    status = first_failure([Blocked("the cluster is scaling up", by)], TIMEOUT)
    assert status is not None
    assert (status.code, status.wake_on) == (Code.WAIT, (by,))
    assert (status.timeout, status.suggestion) == (timedelta(seconds=10), Suggestion.RESCHEDULE_ELSEWHERE)


def test_a_wait_for_a_device_repeats_why_its_agent_does_not_run() -> None:
    starting = Pending(reservation())
    refused = Pending(reservation(status_reason="ImagePullBackOff: registry.example/agent:1 not found"))
    status = first_failure([starting, refused, refused], TIMEOUT)
    assert status is not None
    why = "the agent has not reported the device yet: ImagePullBackOff: registry.example/agent:1 not found"
    assert (status.code, status.message, status.timeout) == (Code.WAIT, why, TIMEOUT)
    starting_status = first_failure([starting], TIMEOUT)
    assert starting_status is not None
    assert starting_status.message == "the agent has not reported the device yet"


def test_an_overdue_agent_ends_the_request_as_the_expired_wait_for_it() -> None:
    status = first_failure([Lost("no device within 40 s", is_overdue=True)], TIMEOUT)
    assert status is not None
    end = (status.code, status.reason, status.suggestion)
    assert end == (Code.FATAL, Reason.WAIT_TIMEOUT, Suggestion.RESCHEDULE_ELSEWHERE)
    lost = first_failure([Lost("deleted")], TIMEOUT)
    assert lost is not None
    assert lost.code is Code.RETRY


async def test_who_joins_a_group_changes_its_reservation_once() -> None:
    """A delete that a stopped or slow process has decided on before is refused then."""
    passes, writes = Passes(), LateWrites()
    site = JoinedSite(NO_CLIENT, ReservationSpec("res", "image"), "")
    controller = owner_of(passes, site, SystemClock())
    with noting(writes):
        (answer,) = await controller.claim([claim()])
    assert isinstance(answer, Held)
    assert site.touched == [writes], "its writes are the request's"
    await controller.claim([replace(claim(), joined_uid=answer.uid)])
    assert len(site.touched) == 1, "an attempt that follows has joined already"


async def test_a_reservation_that_was_deleted_meanwhile_gives_no_device() -> None:
    site = JoinedSite(NO_CLIENT, ReservationSpec("res", "image"), "", exists=False)
    with pytest.raises(Conflict):
        await owner_of(Passes(), site, SystemClock()).claim([claim()])


async def test_the_portions_of_a_device_add_up_to_at_most_the_device() -> None:
    """Two claims at once beside a bound pod; the one that is refused counts again when the other was released."""
    site = JoinedSite(
        NO_CLIENT, ReservationSpec("res", "image"), "", bound={ObjectKey("ns", "bound"): Decimal("0.2")}
    )
    controller = owner_of(Passes(), site, SystemClock())
    first, second = (replace(claim(name), portion=Decimal("0.8")) for name in ("a", "b"))
    held, full = await controller.claim([first, second])
    assert isinstance(held, Held)
    status = first_failure([held, full], TIMEOUT)
    assert status is not None
    end = (status.code, status.reason, status.suggestion)
    assert end == (Code.FATAL, Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
    for part in ("group g1 on node n1", "1.8", "ns/b (0.8)", "ns/a (0.8)", "ns/bound (0.2)"):
        assert part in status.message
    controller.release_claims(first.request)
    assert isinstance((await controller.claim([second]))[0], Held)


@pytest.mark.parametrize(
    ("annotations", "portion", "least"),
    [
        pytest.param({"gpu-fraction": "0.125"}, "0.13", "0.125", id="the fraction that was rounded"),
        pytest.param({"gpu-fraction": "0.5"}, "0.80", "0.80", id="more than the pod asked for"),
        pytest.param({"gpu-memory": "1024"}, "0.13", "0.125", id="of an amount, the least that rounds to it"),
        pytest.param({"gpu-memory": "1"}, "0.00", "0", id="hardly anything"),
        pytest.param({"gpu-fraction": "much"}, "0.50", "0.50", id="no number"),
    ],
)
def test_a_rounded_portion_never_counts_as_more_than_it_may_be(
    annotations: dict[str, str], portion: str, least: str
) -> None:
    pod = sharing_pod(annotations)
    assert least_portion(pod, Decimal(portion)) == Decimal(least)
    pod["metadata"]["annotations"] |= {"bowline.dev/gpu-portion": least}
    assert used_portion(pod) == Decimal(least)


def test_a_pod_of_another_binder_uses_its_fraction() -> None:
    assert used_portion(sharing_pod({"gpu-fraction": "0.3"})) == Decimal("0.3")
    assert used_portion(sharing_pod({"gpu-memory": "1024"})) == 0


@pytest.mark.parametrize(
    ("fraction", "portion"),
    [
        ("9e999999", "1"),
        ("9e9999999999", "1"),
        ("1e-999999", "0"),
        ("inf", "0"),
        (f"0.{'5' * 9999}", None),
    ],
)
def test_a_fraction_of_any_size_counts_as_a_short_number_of_at_most_1(fraction: str, portion: str | None) -> None:
    used = used_portion(sharing_pod({"gpu-fraction": fraction}))
    assert f"{used:f}" == (portion or f"0.{'5' * 27}6")


@dataclass(frozen=True, slots=True)
class IdleSite(ReservationClient):
    """Has one reservation without users; ``requested``: requests that list its group. Records deletions."""

    requested: set[str] = field(default_factory=set)
    removed: list[ObjectUID] = field(default_factory=list)

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        return [reservation(group=group, device="GPU-1")]

    async def users(self, group: str, node: str = "") -> list[User]:
        return []

    async def portions(self, group: str, node: str) -> dict[ObjectKey, Decimal]:
        return {}

    async def touch(self, reservation: Reservation) -> Reservation | None:
        return reservation

    async def requested_nodes(self, group: str, nodes: Collection[str], withdrawn: Collection[ObjectUID]) -> set[str]:
        return self.requested

    async def remove(self, reservation: Reservation) -> bool:
        self.removed.append(reservation.uid)
        return True


@pytest.mark.parametrize("end", ["forget", "release_claims"])
async def test_a_device_that_a_claim_has_kept_from_its_check_is_checked_at_the_claims_end(end: str) -> None:
    passes = Passes()
    site = IdleSite(NO_CLIENT, ReservationSpec("res", "image"), "")
    controller = owner_of(passes, site, SystemClock())
    await controller.claim([claim()])
    controller.enqueue(["g1"])  # its only user has ended
    await passes.results()
    assert site.removed == []
    getattr(controller, end)(claim().request)
    await passes.results()
    assert site.removed == [reservation().uid]
    assert controller.sizes["groups"] == 0


async def test_a_device_that_a_request_only_lists_is_checked_again() -> None:
    """The request may end without having asked for it, such as one whose pod was deleted."""
    passes = Passes()
    site = IdleSite(NO_CLIENT, ReservationSpec("res", "image"), "", requested={reservation().node})
    controller = owner_of(passes, site, SystemClock())
    controller.enqueue(["g1"])
    assert await passes.results() == [timedelta(seconds=30)]
    assert site.removed == []


class YieldingSite(CountingSite):
    """Its replies take a while."""

    async def reservations(self, group: str, nodes: Collection[str] = ()) -> list[Reservation]:
        await asyncio.sleep(0)
        return [reservation(group=group, device="GPU-1")]


async def test_a_group_has_one_key_at_a_time_in_turns_of_the_namespace_that_asked_first() -> None:
    """Two keys of one group would be reconciled at once."""
    passes, idle = Passes(), IdleGroups()
    controller = owner_of(passes, YieldingSite(NO_CLIENT, ReservationSpec("res", "image"), ""), SystemClock(), idle)
    controller.enqueue(["g1"], "first")
    await asyncio.sleep(0)  # its reconcile has begun
    controller.enqueue(["g1"], "second")
    controller.enqueue(["g2"], "second")
    await passes.results()
    controller.enqueue(["g1"], "second")
    await passes.results()
    assert [key.namespace for key in passes.keys if key.name == "g1"] == ["first", "first", "second"]
    assert controller.sizes["groups"] == 0
