"""The controller of the groups, pass by pass. All else needs a real API server."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any, cast

import pytest

from bowline.api.meta import ObjectKey, ObjectRef, ObjectUID, ResourceVersion
from bowline.framework.config import GpuSharingSettings, Settings
from bowline.framework.interface.handle import Reconcile
from bowline.framework.interface.status import Fatal, Status, Transient, Waiting
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.errors import ApiStatus, Forbidden, NoResponse
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.group import Groups
from bowline.plugins.gpu_sharing.group_controller import CALL_TIMEOUT_S, GroupController
from bowline.plugins.gpu_sharing.labels import least_portion, used_portion
from bowline.plugins.gpu_sharing.plugin import GpuSharing, pending_status
from bowline.plugins.gpu_sharing.reservation import (
    RELEASE_RETRY,
    DeviceRequest,
    Held,
    Pending,
    Reservation,
    User,
)
from bowline.plugins.gpu_sharing.reservation_client import EVENT_TIMEOUT_S, ReservationClient
from bowline.plugins.gpu_sharing.tests.pods import claim, reservation, sharing_pod, user
from bowline.runtime.clock import Clock, SystemClock
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline.testing.handles import context_for, handle_for

NO_CLIENT: Any = None
TIMEOUT = timedelta(seconds=40)
SECOND = timedelta(seconds=1)
HELD = reservation(device="GPU-1")


@dataclass(slots=True)
class Site:
    """What the cluster has, and what is done there."""

    reservations: tuple[Reservation, ...] = (HELD,)
    users: tuple[User, ...] = ()
    requested: frozenset[str] = frozenset()
    joined: Reservation | None = HELD  # as of the time when it is joined
    created: Reservation = field(default_factory=reservation)
    reads_done: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[str] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)  # of the next reads
    removals: list[str] = field(default_factory=list)
    kept: frozenset[str] = frozenset()  # whose delete a policy denies
    scaling: Status | None = None  # the wait for a scaling pod

    def __post_init__(self) -> None:
        self.reads_done.set()

    def count(self, name: str) -> int:
        return sum(call == name for call in self.calls)


@dataclass(frozen=True, slots=True)
class SiteClient(ReservationClient):
    """Reads and writes the site."""

    site: Site = field(default_factory=Site)

    async def reservations(self, group: str) -> list[Reservation]:
        self.site.calls.append("reservations")
        await self.site.reads_done.wait()
        if self.site.failures:
            raise self.site.failures.pop()
        return list(self.site.reservations)

    async def users(self, group: str, node: str | None = None, mebibytes: int = 0) -> list[User]:
        self.site.calls.append(f"users of {group} on {node}")
        return [user for user in self.site.users if node is None or bool(user.node) is bool(node)]

    async def requested_nodes(self, group: str, nodes: Collection[str], withdrawn: Collection[ObjectUID]) -> set[str]:
        return set(self.site.requested)

    async def scaling_up(self) -> Status | None:
        return self.site.scaling

    async def create(self, claim: DeviceRequest, name: str) -> Reservation | str:
        self.site.calls.append(f"create {claim.group} {claim.compute_mode}" if claim.compute_mode else "create")
        self.site.reservations += (self.site.created,)
        return self.site.created

    async def touch(self, reservation: Reservation) -> Reservation | None:
        self.site.calls.append("touch")
        return self.site.joined

    async def remove(self, reservation: Reservation) -> bool:
        self.site.calls.append("remove")
        if reservation.key.name in self.site.kept:
            raise Forbidden(ApiStatus(403, "Forbidden", "it is kept"))
        self.site.removals.append(reservation.key.name)
        return True


@dataclass(frozen=True, slots=True)
class LosingClient(SiteClient):
    """The ConfigMaps of the pods do not show their device."""

    async def lost_device(self, group: str, users: Sequence[User]) -> DeviceRequest:
        return claim()

    async def report(self, users: Iterable[User], reason: str, note: str, *, is_warning: bool = True) -> None:
        self.site.calls.append(reason)


class Patched:
    """A client that records the metadata that is patched."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Any]] = []

    async def patch(self, _: Any, namespace: str, name: str, body: Any, **__: Any) -> Any:
        self.patches.append((name, body["metadata"]))
        return body


class Passes:
    """Runs a pass for every key that is added, and stores its result."""

    def __init__(self) -> None:
        self.running: list[asyncio.Task[timedelta | None]] = []

    def worker(self, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        return lambda key: self.running.append(asyncio.ensure_future(reconcile(key)))

    async def results(self) -> list[timedelta | None]:
        return await asyncio.gather(*self.running)


async def looked(controller: GroupController, passes: Passes) -> None:
    """A term begins: what the watches show is checked."""
    term = asyncio.ensure_future(controller.run())
    await asyncio.sleep(0)
    await passes.results()
    term.cancel()


class NoPasses(Passes):
    """Runs none, as a process that does not lead."""

    def worker(self, name: str, reconcile: Reconcile) -> Callable[[ObjectKey], None]:
        return lambda _: None


def sharing(name: str) -> Any:
    """A sharing pod as the watch caches it."""
    return {"metadata": {"name": name, "namespace": "ns", "labels": {"runai-gpu-group": "g1"}}}


def owner(
    site: Site,
    passes: Passes | None = None,
    clock: Clock | None = None,
    watched: Groups | None = None,
    *,
    releases_foreign: bool = True,
    kube: Any = NO_CLIENT,
    client_class: type[SiteClient] = SiteClient,
    overcommit: str = "1",
) -> GroupController:
    args = GpuSharingConfig(overcommit=Decimal(overcommit))
    client = client_class(kube, GpuSharingSettings(enabled=releases_foreign), args, site)
    worker = (passes or Passes()).worker
    handle = replace(handle_for("gpu_sharing", NO_CLIENT, clock=clock or SystemClock()), worker=worker)
    return GroupController(handle, client, watched or Groups(), timedelta(seconds=60))


def cached(reservation: Reservation) -> Any:
    """A reservation pod as the watch caches it."""
    return {"metadata": {"name": reservation.key.name}, "reservation": reservation}


@pytest.mark.parametrize("is_withdrawn", [True, False])
@pytest.mark.looptime
async def test_passes_of_a_group_are_one_after_the_other_and_share_a_read(is_withdrawn: bool) -> None:
    """The wait is charged to the API server; nothing is reserved for who has been withdrawn meanwhile."""
    site = Site(())
    site.reads_done.clear()
    controller = owner(site)
    account = TimeAccount(asyncio.get_running_loop().time)
    first = asyncio.ensure_future(controller.claim(claim("a")))
    await asyncio.sleep(0)
    with accounting(account):
        waiting = [asyncio.ensure_future(controller.claim(claim(name))) for name in ("b", "c")]
    await asyncio.sleep(30)
    assert [account.caller_s, account.api_s] == pytest.approx([0, 30])
    if is_withdrawn:
        first.cancel()
        waiting[0].cancel()
    site.reads_done.set()
    await asyncio.gather(first, *waiting, return_exceptions=True)
    assert waiting[1].result() == Pending(reservation())
    assert [site.count("reservations"), site.count("create")] == [2, 1]
    for name in ("a", "b", "c"):
        controller.forget(claim(name).request)


async def test_an_ended_pod_causes_no_list_while_the_cache_has_another_user() -> None:
    passes, watched = Passes(), Groups()
    site = Site(users=(user(),))
    controller = owner(site, passes, watched=watched)
    for name in ("a", "b"):
        watched.user_changed(None, sharing(name))
    watched.user_changed(sharing("a"), None)
    controller.enqueue(["g1"])
    assert await passes.results() == [None]
    assert site.calls == ["reservations"]
    # Without another user one read decides, of the pods of one node.
    watched.user_changed(sharing("b"), None)
    controller.enqueue(["g1"])
    await passes.results()
    assert site.calls[1:] == ["reservations", "users of g1 on n1"]
    assert controller.sizes["groups"] == 0


@dataclass(frozen=True, slots=True)
class ScalingPods:
    """Lists one scaling pod, unless that is forbidden."""

    is_forbidden: bool

    async def list_all(self, *_: Any, **__: Any) -> Any:
        if self.is_forbidden:
            raise Forbidden(ApiStatus(403, "Forbidden", "pods is forbidden"))
        metadata = {"namespace": "kai-scale-adjust", "name": "wants-gpu", "uid": "u", "resourceVersion": "1"}
        return [{"metadata": metadata, "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}]


async def test_a_wait_for_a_scaling_pod_is_short_and_those_that_cannot_be_listed_block_nothing() -> None:
    def client(*, is_forbidden: bool, **args: str) -> ReservationClient:
        kube: Any = ScalingPods(is_forbidden)
        return ReservationClient(kube, GpuSharingSettings(), GpuSharingConfig.model_validate(args))

    assert await client(is_forbidden=True).scaling_up() is None
    assert await client(is_forbidden=False, scaleAdjustNamespace="").scaling_up() is None
    status = await client(is_forbidden=False).scaling_up()
    assert status is not None
    by = ObjectRef("v1", "Pod", ObjectKey("kai-scale-adjust", "wants-gpu"), ObjectUID("u"), ResourceVersion("1"))
    assert isinstance(status, Waiting)
    assert (status.wake_on) == ((by,))
    assert (status.timeout, status.suggestion) == (timedelta(seconds=10), Suggestion.RESCHEDULE_ELSEWHERE)


async def test_no_new_device_is_reserved_while_the_cluster_is_scaling_up() -> None:
    scaling = Status.wait("the cluster is scaling up")
    site = Site((), scaling=scaling)
    assert await owner(site).claim(claim()) is scaling
    assert site.count("create") == 0
    assert await owner(Site(scaling=scaling)).claim(claim()) == Held("GPU-1"), "a device that is reserved is shared"


def test_a_wait_for_a_device_repeats_why_its_agent_does_not_run() -> None:
    starting = Pending(reservation())
    refused = Pending(reservation(status_reason="ImagePullBackOff: registry.example/agent:1 not found"))
    status = pending_status([starting, refused, refused], TIMEOUT)
    assert status is not None
    why = "the agent has not reported the device yet: ImagePullBackOff: registry.example/agent:1 not found"
    assert isinstance(status, Waiting)
    assert (status.message, status.timeout) == (why, TIMEOUT)
    starting_status = pending_status([starting], TIMEOUT)
    assert starting_status is not None
    assert starting_status.message == "the agent has not reported the device yet"


async def test_who_joins_a_group_changes_its_reservation_once() -> None:
    """A delete that a stopped or slow process has decided on before is refused then."""
    site = Site()
    controller = owner(site)
    assert isinstance(await controller.claim(claim()), Held)
    await controller.claim(claim())
    assert site.count("touch") == 1, "an attempt that follows has joined already"


@pytest.mark.parametrize(
    "joined",
    [
        pytest.param(None, id="it was deleted meanwhile"),
        pytest.param(reservation(device="GPU-2", expected_devices=frozenset({"GPU-1"})), id="it has another device"),
        pytest.param(reservation(group="", device="GPU-1"), id="it has lost its label"),
    ],
)
async def test_a_reservation_that_has_lost_its_device_gives_none(joined: Reservation | None) -> None:
    assert isinstance(await owner(Site(joined=joined)).claim(claim()), Transient)


async def test_no_other_device_is_reserved_while_a_pod_that_was_given_the_lost_one_is_being_bound() -> None:
    site = Site()
    controller = owner(site)
    assert isinstance(await controller.claim(claim("a")), Held)
    site.reservations = ()  # evicted, and gone
    refused = await controller.claim(claim("b"))
    assert isinstance(refused, Transient)
    assert "given its device" in refused.message
    # A new attempt does not rely on what an earlier one was given.
    assert isinstance(await controller.claim(claim("a")), Pending)


async def test_the_portions_of_a_device_add_up_to_at_most_the_device() -> None:
    """Two claims at once beside a bound pod; the one that is refused counts again when the other was released."""
    ended = replace(user("ended", has_ended=True), portion=Decimal("0.8"))
    controller = owner(Site(users=(replace(user("bound"), portion=Decimal("0.2")), ended)))
    first, second = (replace(claim(name), portion=Decimal("0.8")) for name in ("a", "b"))
    held, full = await asyncio.gather(controller.claim(first), controller.claim(second))
    assert isinstance(held, Held)
    assert isinstance(full, Fatal)
    assert (full.reason, full.suggestion) == (Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
    for part in ("group g1 on node n1", "1.8", "ns/b (0.8)", "ns/a (0.8)", "ns/bound (0.2)"):
        assert part in full.message
    controller.forget(first.request)
    assert isinstance(await controller.claim(second), Held)


async def test_a_device_may_be_over_packed() -> None:
    controller = owner(Site(users=(replace(user("bound"), portion=Decimal("0.8")),)), overcommit="1.5")
    first, second = (replace(claim(name), portion=Decimal(portion)) for name, portion in (("a", "0.7"), ("b", "0.1")))
    assert isinstance(await controller.claim(first), Held)
    assert isinstance(await controller.claim(second), Fatal)


async def test_a_pod_that_a_former_leader_may_still_bind_has_its_portion() -> None:
    """It was labelled; the leader has changed; the Binding takes effect late, and no request claims the device."""
    late = replace(user("late", node=""), portion=Decimal("0.8"))
    second = replace(claim("b"), portion=Decimal("0.8"))
    clock, watched = SteppedClock(), Groups()
    controller = owner(Site(users=(late,)), clock=clock, watched=watched)
    term = asyncio.ensure_future(controller.run())
    await asyncio.sleep(0)
    assert isinstance(await controller.claim(replace(claim("c"), portion=Decimal("0.2"))), Held)
    answer = await controller.claim(second)
    assert isinstance(answer, Waiting)
    assert "ns/late" in answer.message
    clock.step(timedelta(seconds=60))
    controller.forget(claim("c").request)
    assert isinstance(await controller.claim(second), Held)
    term.cancel()


@pytest.mark.parametrize(
    ("other", "device", "has_user", "is_refused"),
    [
        pytest.param("g2", "GPU-1", True, True, id="pods of another group have it"),
        pytest.param("g2", "GPU-1", False, False, id="no pod has it: the first group by name gets it"),
        pytest.param("g0", "GPU-1", False, True, id="no pod has it, and the other group is the first"),
        pytest.param("g2", "GPU-2", True, False, id="another device"),
    ],
)
async def test_a_device_that_its_node_offers_twice_is_that_of_one_group(
    other: str, device: str, has_user: bool, is_refused: bool
) -> None:
    watched = Groups()
    for group, uuid in (("g1", "GPU-1"), (other, device)):
        watched.reservation_changed(None, cached(reservation(group=group, device=uuid)))
    if has_user:
        watched.user_changed(None, {"metadata": {"name": "runs", "labels": {"runai-gpu-group": other}}})
    controller = owner(Site(), watched=watched)
    answer = await controller.claim(claim())
    assert isinstance(answer, Fatal) is is_refused
    if isinstance(answer, Fatal):
        assert f"device GPU-1 of group g1 on node n1 is that of group {other}" in answer.message
        watched.user_changed(None, sharing("joined"))
        assert isinstance(await controller.claim(claim()), Held)  # both had it before


@pytest.mark.parametrize(
    ("annotations", "portion", "memory", "least"),
    [
        pytest.param({"gpu-fraction": "0.125"}, "0.13", 0, "0.125", id="the fraction that was rounded"),
        pytest.param({"gpu-fraction": "0.3333334"}, "0.33", 0, "0.33333", id="three of them have room"),
        pytest.param({"gpu-fraction": "0.5"}, "0.80", 0, "0.8", id="more than the pod asked for"),
        pytest.param({"gpu-fraction": "0.5"}, "0.00", 0, "0.5", id="the scheduler could not read the fraction"),
        pytest.param({"gpu-memory": "1024"}, "0.13", 0, "0.125", id="of an amount, the least that rounds to it"),
        pytest.param({"gpu-memory": "2040"}, "0.13", 16384, "0.125", id="an amount that was rounded up"),
        pytest.param({"gpu-memory": "4096"}, "0.00", 16384, "0.25", id="the scheduler could not read the amount"),
        pytest.param({"gpu-memory": "4096"}, "0.80", 16384, "0.795", id="more than the amount"),
        pytest.param({"gpu-memory": "1"}, "0.00", 0, "0", id="hardly anything"),
        pytest.param({"gpu-fraction": "much"}, "0.50", 0, "0.5", id="no number"),
    ],
)
def test_a_rounded_portion_never_counts_as_more_than_it_may_be(
    annotations: dict[str, str], portion: str, memory: int, least: str
) -> None:
    pod = sharing_pod(annotations)
    assert f"{least_portion(pod, Decimal(portion), memory):f}" == least
    pod["metadata"]["annotations"] |= {"bowline.dev/gpu-portion": least}
    assert used_portion(pod) == Decimal(least)


@pytest.mark.parametrize(
    ("annotations", "device_memory", "portion"),
    [
        pytest.param({"gpu-fraction": "0.3"}, 0, "0.3", id="its fraction"),
        pytest.param({"gpu-memory": "4096"}, 16384, "0.25", id="its memory, of the node's devices"),
        pytest.param({"gpu-memory": "4096"}, 0, "0", id="a node without the label"),
        pytest.param({"gpu-memory": "-1"}, 16384, "0", id="no amount"),
        pytest.param({"gpu-fraction": "9e9999999999"}, 0, "1", id="a large number"),
        pytest.param({"gpu-fraction": "1e-999999"}, 0, "0", id="a small number"),
        pytest.param({"gpu-fraction": "-1"}, 0, "0", id="a negative number"),
        pytest.param({"gpu-fraction": "inf"}, 0, "0", id="infinity"),
        pytest.param({"gpu-fraction": f"0.{'5' * 9999}"}, 0, "0.55555", id="a long number"),
    ],
)
def test_what_a_pod_of_another_binder_uses_of_its_device(
    annotations: dict[str, str], device_memory: int, portion: str
) -> None:
    assert f"{used_portion(sharing_pod(annotations), device_memory):f}" == portion


async def test_a_device_that_a_claim_has_kept_from_its_check_is_checked_after_the_claims_end() -> None:
    """As where the pod has ended before its request was completed: nothing else asks for the group then."""
    passes, site = Passes(), Site()
    controller = owner(site, passes)
    await controller.claim(claim())
    controller.enqueue(["g1"])  # its only user has ended
    assert await passes.results() == [RELEASE_RETRY]
    assert site.count("remove") == 0
    controller.forget(claim().request)
    controller.enqueue(["g1"])  # the delay is over
    assert (await passes.results())[-1] is None
    assert site.count("remove") == 1
    assert controller.sizes["groups"] == 0


async def test_a_device_in_use_is_not_checked_again_because_of_a_claim() -> None:
    passes, watched = Passes(), Groups()
    watched.user_changed(None, sharing("p1"))
    controller = owner(Site(), passes, watched=watched)
    await controller.claim(claim())
    controller.enqueue(["g1"])
    assert await passes.results() == [None]


@pytest.mark.parametrize(
    ("is_foreign", "releases_foreign", "is_released"),
    [(True, True, True), (True, False, False), (False, False, True)],
)
async def test_an_unused_device_of_another_binder_is_released_while_shares_are_on(
    is_foreign: bool, releases_foreign: bool, is_released: bool
) -> None:
    passes, site = Passes(), Site((reservation(device="GPU-1", is_foreign=is_foreign),))
    owner(site, passes, releases_foreign=releases_foreign).enqueue(["g1"])
    await passes.results()
    assert site.count("remove") == is_released
    # So is one whose agent is silent, beside the one that has the device.
    second = replace(reservation(is_foreign=is_foreign), key=ObjectKey("res", "second"), uid=ObjectUID("r2"))
    clock, silent, watched = SteppedClock(), Site((HELD, second), (user(),)), Groups()
    watched.reservation_changed(None, cached(second))
    controller = owner(silent, passes, clock, watched, releases_foreign=releases_foreign)
    for _ in range(2):
        controller.enqueue(["g1"])
        await passes.results()
        clock.step(TIMEOUT)
    assert silent.removals == ["second"] * is_released
    # While shares are off, nobody asks who uses another binder's.
    alone = Site((reservation(is_foreign=is_foreign),), (user(),))
    controller = owner(alone, NoPasses(), clock, Groups(), releases_foreign=releases_foreign)
    for _ in range(2):
        await controller.release(claim().request, ObjectUID("a"), ["g1"])
        clock.step(TIMEOUT)
    assert ("users of g1 on n1" in alone.calls) is is_released
    assert alone.removals == []


async def test_a_silent_reservation_is_released_with_the_last_request_for_it() -> None:
    """Each of them ends by its own wait, also one that has joined late."""
    site = Site((reservation(),))
    controller = owner(site)
    for name in ("a", "b"):
        assert isinstance(await controller.claim(claim(name)), Pending)
    await controller.release(claim("a").request, ObjectUID("a"), ["g1"])
    assert site.removals == []
    await controller.release(claim("b").request, ObjectUID("b"), ["g1"])
    assert site.removals == [reservation().key.name]


@pytest.mark.parametrize("reservations", [(), (reservation(),)])
@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize(("waited_s", "is_removed"), [(20, False), (40, True)])
async def test_a_silent_reservation_is_released_once_a_request_has_waited_for_it(
    waited_s: float, is_removed: bool, has_failed: bool, reservations: tuple[Reservation, ...]
) -> None:
    """It is by the first whose wait ends, also while others wait: requests that overlap would keep it for ever.

    A read that fails meanwhile does not begin its wait anew.
    """
    site, clock = Site(reservations), SteppedClock()
    controller = owner(site, clock=clock)
    for waited in (0, waited_s / 2, waited_s / 2):
        clock.step(timedelta(seconds=waited))
        if has_failed:
            site.failures.append(NoResponse("no reply"))
            with pytest.raises(NoResponse):
                await controller.claim(claim("a"))
        await controller.claim(claim("a"))
    await controller.claim(claim("b"))
    await controller.release(claim("a").request, ObjectUID("a"), ["g1"])
    assert site.removals == [reservation().key.name] * is_removed


async def test_a_check_leaves_a_silent_reservation_to_the_request_that_waits_for_it() -> None:
    """The request reports that its wait has ended, not that somebody has deleted the reservation."""
    passes, site, clock = Passes(), Site((reservation(),)), SteppedClock()
    controller = owner(site, passes, clock)
    await controller.claim(claim("a"))
    clock.step(TIMEOUT)
    controller.enqueue(["g1"])
    await passes.results()
    assert site.removals == []
    await controller.release(claim("a").request, ObjectUID("a"), ["g1"])
    assert site.removals == [reservation().key.name]


@pytest.mark.parametrize("deleting", [True, False])
@pytest.mark.parametrize("is_shown", [True, False])
async def test_a_silent_reservation_stays_while_pods_may_run_with_its_device(is_shown: bool, deleting: bool) -> None:
    """Somebody has removed its report, and perhaps the label by which the watch would show the pods."""
    silent = reservation(expected_devices=frozenset({"GPU-1"}), is_joined=True)
    site, clock, watched = Site((silent,), (user(deleting=deleting),)), SteppedClock(), Groups()
    watched.reservation_changed(None, cached(silent))
    if is_shown:
        watched.user_changed(None, sharing("a"))
    controller = owner(site, NoPasses(), clock, watched, client_class=LosingClient)
    for _ in range(3):
        await controller.release(claim("a").request, ObjectUID("a"), ["g1"])
        clock.step(TIMEOUT)
    assert site.removals == []


async def test_a_silent_reservation_stays_while_a_pod_is_about_to_be_bound_with_its_device() -> None:
    site, clock = Site(), SteppedClock()
    controller = owner(site, clock=clock)
    assert isinstance(await controller.claim(claim("a")), Held)
    site.reservations = (reservation(),)  # its report was removed
    for _ in range(2):
        await controller.release(claim("b").request, ObjectUID("b"), ["g1"])
        clock.step(TIMEOUT)
    assert site.removals == []


@dataclass(frozen=True, slots=True)
class CompletingClient(SiteClient):
    """A request is completed, and gone, when the requests are listed: its pod has just been bound."""

    async def requested_nodes(self, group: str, nodes: Collection[str], withdrawn: Collection[ObjectUID]) -> set[str]:
        self.site.users = (user(),)
        return set()


async def test_a_request_that_is_completed_during_a_check_keeps_its_device() -> None:
    """Its Binding, sent in an earlier term, took effect between two reads (simulation, late, seed 1795976123)."""
    site, passes = Site(), Passes()
    owner(site, passes, client_class=CompletingClient).enqueue(["g1"])
    await passes.results()
    assert site.removals == []


async def test_a_release_that_fails_is_repeated_without_its_request() -> None:
    """The request may be gone by then, and nobody else asks for the group."""
    site, passes = Site(), Passes()
    controller = owner(site, passes)
    site.failures.append(NoResponse("no reply"))
    with pytest.raises(NoResponse):
        await controller.release(ObjectKey("ns", "a"), ObjectUID("uid"), ["g1"])
    await passes.results()
    assert site.count("remove") == 1
    controller.forget(ObjectKey("ns", "a"))
    assert controller.sizes["groups"] == 0


async def test_a_release_that_outlasts_its_term_leaves_no_group() -> None:
    site = Site()
    controller = owner(site, NoPasses())
    site.failures.append(NoResponse("no reply"))
    with pytest.raises(NoResponse):
        await controller.release(ObjectKey("ns", "a"), ObjectUID("uid"), ["g1"])
    assert controller.sizes["groups"] == 0


async def test_a_device_that_is_idle_is_checked_without_an_event() -> None:
    """Its last user may have come and gone while a watch was silent, or a request that lists it has ended."""
    passes, watched = Passes(), Groups()
    site = Site(requested=frozenset({HELD.node}))
    controller = owner(site, passes, watched=watched)
    watched.reservation_changed(None, cached(HELD))
    await looked(controller, passes)
    assert site.count("remove") == 0, "a request lists it"
    site.requested = frozenset()
    await looked(controller, passes)
    assert site.count("remove") == 1


async def test_a_pod_of_another_binder_is_labelled_when_its_device_looks_unused() -> None:
    """The watch does not show it: it selects a label. A pod that has it is not changed."""
    labels = {"runai-gpu-group": "g1", "runai-gpu-group/g2": "g2", "bowline.dev/gpu-sharing": "true"}
    kai = replace(user("kai"), missing_labels=labels)
    site, passes, kube = Site(users=(kai, user("ours"))), Passes(), Patched()
    owner(site, passes, kube=kube).enqueue(["g1"])
    await passes.results()
    assert site.count("remove") == 0
    assert kube.patches == [("kai", {"uid": "uid-kai", "labels": labels})]


class Down(Patched):
    """A webhook for the pods of one namespace is down, or hangs."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.hangs = hangs

    async def patch(self, *args: Any, **options: Any) -> Any:
        if self.hangs:
            await asyncio.sleep(3600)
        raise NoResponse("no reply")


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.looptime
async def test_a_pod_that_cannot_be_labelled_delays_no_pod_that_needs_a_whole_device(hangs: bool) -> None:
    site = Site(users=(replace(user("kai"), missing_labels={"runai-gpu-group": "g1"}),))
    controller, began = owner(site, kube=Down(hangs=hangs)), asyncio.get_running_loop().time()
    assert await controller.release_unused(["g1"], "n1", "another") == []
    assert asyncio.get_running_loop().time() - began <= CALL_TIMEOUT_S


class OneHangs:
    """Events of one namespace are written by nobody, as a webhook hangs."""

    clock, random = SteppedClock(), Random(0)  # noqa: S311 - names of events

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def create(self, _: Any, namespace: str, body: Any, **__: Any) -> Any:
        if namespace == "hangs":
            await asyncio.sleep(3600)
        self.notes.append(body["note"])


@pytest.mark.looptime
async def test_an_event_that_hangs_delays_neither_the_others_nor_the_recovery_that_follows() -> None:
    kube, began = OneHangs(), asyncio.get_running_loop().time()
    client = ReservationClient(cast(Any, kube), GpuSharingSettings(), GpuSharingConfig())
    await client.report([replace(user("a"), key=ObjectKey("hangs", "a")), user("b")], "Lost", "it is lost")
    assert kube.notes == ["it is lost"]
    assert asyncio.get_running_loop().time() - began <= EVENT_TIMEOUT_S


async def test_an_event_during_a_pass_asks_for_another_one() -> None:
    passes, site = Passes(), Site()
    site.reads_done.clear()
    controller = owner(site, passes)
    controller.enqueue(["g1"], "first")
    await asyncio.sleep(0)  # its pass has begun
    controller.enqueue(["g1"], "second")
    site.reads_done.set()
    await passes.results()
    assert site.count("reservations") == 2
    assert controller.sizes["groups"] == 0


async def test_an_ended_reservation_beside_the_one_that_holds_the_device_delays_no_claim() -> None:
    """A policy keeps it. It holds nothing, and is deleted with the last user of the device."""
    ended = reservation(key=ObjectKey("res", "ended"), has_ended=True)
    site = Site((HELD, ended), kept=frozenset({"ended"}))
    assert await owner(site).claim(claim()) == Held("GPU-1")
    assert site.count("remove") == 0


async def test_a_reservation_that_others_have_created_meanwhile_gives_its_device_at_once() -> None:
    """As a former leader that was stopped: nothing changes it any more, so a wait for its agent would time out."""
    assert await owner(Site((), created=HELD)).claim(claim()) == Held("GPU-1")


async def test_a_blocker_that_cannot_be_deleted_delays_no_claim_and_no_report() -> None:
    """A policy keeps it: the search for the lost device has ended all the same."""
    misplaced = replace(reservation(device="GPU-2", expected_devices=frozenset({"GPU-1"})), uid=ObjectUID("r2"))
    blocker = replace(misplaced, key=ObjectKey("res", f"{misplaced.key.name}-1"))
    site, passes, watched = Site((HELD, blocker), (user(),), kept=frozenset({blocker.key.name})), Passes(), Groups()
    watched.user_changed(None, sharing("a"))
    controller = owner(site, passes, watched=watched)
    assert await controller.claim(claim()) == Held("GPU-1")
    assert await passes.results() == [RELEASE_RETRY]
    site.kept = frozenset()
    controller.enqueue(["g1"])
    await passes.results()
    assert site.removals == [blocker.key.name], "the device that pods use is kept"


WHOLE: Any = {"receivedGPU": {"count": 1, "portion": "1.00"}}


def sharing_of(group: str) -> Any:
    return {"receivedResourceType": "Fraction", **WHOLE, "selectedGPUGroups": [group]}


@pytest.mark.parametrize(
    ("node", "decision", "waits"),
    [
        pytest.param("n1", WHOLE, True, id="a pod that takes a whole GPU of the node"),
        pytest.param("n2", WHOLE, False, id="one that takes a GPU of another node"),
        pytest.param("n1", {}, False, id="one that takes no GPU"),
        pytest.param("n1", sharing_of("new"), True, id="a share that needs a device"),
        pytest.param("n1", sharing_of("used"), False, id="a share of a device that is reserved"),
    ],
)
async def test_an_unused_device_that_cannot_be_released_delays_only_pods_that_need_one(
    node: str, decision: Any, waits: bool
) -> None:
    """A policy of the cluster denies the delete."""
    site, watched = Site((HELD,), kept=frozenset({HELD.key.name})), Groups()
    watched.reservation_changed(None, cached(HELD))
    watched.reservation_changed(None, cached(reservation(group="used", device="GPU-2")))
    watched.user_changed(None, {"metadata": {"name": "runs", "labels": {"runai-gpu-group": "used"}}})
    plugin = GpuSharing(GpuSharingConfig(), Settings())
    plugin._groups, plugin._controller = watched, owner(site, watched=watched)
    ctx = context_for(stored(bind_request("p", node, "ns", "u", **decision)), pod())
    status = await plugin.pre_bind(ctx)
    assert isinstance(status, Waiting) is bool(site.count("remove")) is waits
    assert not waits or "cannot be released: reservation pod res/" in status.message
    if waits:
        site.kept = frozenset()
        assert not isinstance(await plugin.pre_bind(ctx), Waiting)
        assert site.removals == [HELD.key.name]


PREPARED = {"runai/shared-gpu-configmap": "p", "gpu-fraction": "0.5"}
SM_SHARING = {"selectedFractionalGpuGroups": [{"id": "g1", "computeSharingMode": "sm-sharing"}]}


@pytest.mark.parametrize(
    ("annotations", "decision", "expected", "text"),
    [
        pytest.param({}, {**sharing_of("g1"), **SM_SHARING}, Waiting, "the agent has not reported", id="a mode"),
        pytest.param({"gpu-fraction-num-devices": "2"}, sharing_of("g1"), Fatal,
            "spec.receivedGPU.count: 1 must be 2, the gpu-fraction-num-devices of pod ", id="a device less"),
        pytest.param({}, {"receivedResourceType": "MigInstance"}, Fatal,
            "spec.receivedResourceType: MigInstance must be Fraction, with a group for each device: ",
            id="no share"),
    ],
)  # fmt: skip
async def test_the_decision_is_of_the_share_that_its_pod_requests(
    annotations: dict[str, str], decision: Any, expected: type[Status], text: str
) -> None:
    site, watched = Site((), created=reservation(compute_mode="sm-sharing")), Groups()
    plugin = GpuSharing(GpuSharingConfig(), Settings())
    plugin._groups, plugin._controller = watched, owner(site, watched=watched)
    share = sharing_pod({**PREPARED, **annotations}, runtimeClassName="nvidia")
    status = await plugin.pre_bind(context_for(stored(bind_request("p", "n1", "ns", "u", **decision)), share))
    assert isinstance(status, expected)
    assert text in status.message
    assert ("create g1 sm-sharing" in site.calls) is (expected is Waiting)
    assert not isinstance(status, Fatal) or status.reason is Reason.INVALID
