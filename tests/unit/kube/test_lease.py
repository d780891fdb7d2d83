"""When a term begins and ends by the clock: with a late reply, and with a Lease that was deleted."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, format_micro_time
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import ApiStatus, NotFound
from bowline.kube.lease import LeaderElector, LeaseTimings, LeaseVersions
from bowline.kube.resources import LEASES, Resource
from bowline.testing.clock import START, SteppedClock
from tests.waiting import until

HELD: dict[str, Any] = {
    "metadata": {"resourceVersion": "1"},
    "spec": {"holderIdentity": "two", "leaseDurationSeconds": 15, "renewTime": format_micro_time(START)},
}
TIMINGS = LeaseTimings(timedelta(seconds=15), timedelta(seconds=10), timedelta(milliseconds=1))


class LateReplies(KubeClient):
    """Replies to each write of a Lease after six seconds; each renewal records what is left of the term before it.

    ``lease``: what a read returns; None: that there is none.
    """

    clock: SteppedClock

    def __init__(self, lease: dict[str, Any] | None = None) -> None:
        super().__init__(load_access(ApiServer("http://none")), ClientOptions(clock=SteppedClock()))
        self.elector = LeaderElector(self, ObjectKey("default", "lease"), "one", TIMINGS, LeaseVersions())
        self.left: list[float] = []
        self.lease, self.reads = lease, 0

    async def get(self, *args: Any, **options: Any) -> dict[str, Any]:
        self.reads += 1
        if self.lease is not None:
            return self.lease
        raise NotFound(ApiStatus(404, "NotFound", "there is no Lease"))

    async def create(self, resource: Resource, namespace: str, body: Any, **options: Any) -> dict[str, Any]:
        if resource != LEASES:
            await asyncio.Event().wait()
        return self._stored(body)

    async def update(
        self, resource: Resource, namespace: str, name: str, body: Any, **options: Any
    ) -> dict[str, Any]:
        self.left.append(self.elector.left_s)
        return self._stored(body)

    async def pages(self, *args: Any, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        await asyncio.Event().wait()
        yield {}

    def _stored(self, body: Any) -> dict[str, Any]:
        self.clock.step(timedelta(seconds=6))
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}


def read_lease() -> LeaseVersions:
    """Return what an earlier term of the process has read."""
    versions = LeaseVersions()
    versions.check({"metadata": {"name": "lease", "namespace": "default", "resourceVersion": "1"}})
    return versions


async def test_of_fifteen_seconds_nine_are_left_after_a_reply_that_took_six() -> None:
    client, stop = LateReplies(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.elector.run(stop))
        await until(lambda: len(client.left) >= 3)
        stop.set()
    assert client.left[:3] == [9, 9, 9], "after the creation, and after two renewals"


@pytest.mark.parametrize(
    ("lease", "versions"),
    [
        pytest.param(HELD, LeaseVersions, id="its holder may be suspended, and lead until then"),
        pytest.param(None, read_lease, id="another one may lead, whom a suspended former leader has not read"),
    ],
)
async def test_a_deleted_lease_is_created_again_when_whoever_holds_it_has_stopped_leading(
    lease: dict[str, Any] | None, versions: Callable[[], LeaseVersions]
) -> None:
    """What the holder has sent may still take effect."""
    client, stop = LateReplies(lease), asyncio.Event()
    client.elector = LeaderElector(client, ObjectKey("default", "lease"), "one", TIMINGS, versions())
    async with asyncio.TaskGroup() as group:
        group.create_task(client.elector.run(stop))
        await until(lambda: lease is None or client.elector.leader == "two")
        client.lease, reads = None, client.reads
        await until(lambda: client.reads >= reads + 3)
        assert not client.elector.is_leader.is_set()
        client.clock.step(TIMINGS.lease_duration)
        await until(client.elector.is_leader.is_set)
        assert client.ledger.inherits
        stop.set()


async def test_who_finds_no_lease_leads_at_once_and_takes_it_for_deleted() -> None:
    """Its former holder, whom this process has not read, may have sent writes that still take effect."""
    client, stop = LateReplies(), asyncio.Event()
    client.ledger.inherits = False  # a released one was deleted before it could be acquired
    async with asyncio.TaskGroup() as group:
        group.create_task(client.elector.run(stop))
        await until(client.elector.is_leader.is_set)
        assert client.ledger.inherits
        stop.set()


async def test_a_term_whose_acquisition_had_no_reply_inherits_writes_whatever_the_one_before_did() -> None:
    client, stop = LateReplies({**HELD, "spec": {**HELD["spec"], "holderIdentity": "one"}}), asyncio.Event()
    client.ledger.inherits = False
    client.elector = LeaderElector(client, ObjectKey("default", "lease"), "one", TIMINGS, LeaseVersions())
    async with asyncio.TaskGroup() as group:
        group.create_task(client.elector.run(stop))
        await until(client.elector.is_leader.is_set)
        assert client.ledger.inherits
        stop.set()
