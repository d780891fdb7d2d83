"""A term counts from when the write of the Lease was sent, however late its reply is."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import ApiStatus, NotFound
from bowline.kube.lease import LeaderElector, LeaseTimings, LeaseVersions
from bowline.kube.resources import LEASES, Resource
from bowline.testing.clock import SteppedClock
from tests.waiting import until

TIMINGS = LeaseTimings(timedelta(seconds=15), timedelta(seconds=10), timedelta(milliseconds=1))


class LateReplies(KubeClient):
    """Replies to each write of a Lease after six seconds; each renewal records what is left of the term before it."""

    clock: SteppedClock

    def __init__(self) -> None:
        super().__init__(load_access(ApiServer("http://none")), ClientOptions(clock=SteppedClock()))
        self.elector = LeaderElector(self, ObjectKey("default", "lease"), "one", TIMINGS, LeaseVersions())
        self.left: list[float] = []

    async def get(self, *args: Any, **options: Any) -> dict[str, Any]:
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


async def test_of_fifteen_seconds_nine_are_left_after_a_reply_that_took_six() -> None:
    client, stop = LateReplies(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.elector.run(stop))
        await until(lambda: len(client.left) >= 3)
        stop.set()
    assert client.left[:3] == [9, 9, 9], "after the creation, and after two renewals"
