"""Failed means released: a scheduler may delete a Failed request and create another of its name in the same cycle.

KAI-Scheduler does so. If the finalizer were still on the Failed request, its name would be taken, and the rest of the
gang would get no requests. Here a scheduler does it as soon as a watch reports Failed.
``BOWLINE_TEST_REPLACEMENTS`` is the number of replaced requests per test; the default keeps the test short.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.framework.plugin_status import Status
from bowline.kube.client import KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import AlreadyExists
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, Selection
from bowline.testing.builders import bind_request
from bowline.testing.fault_proxy.faults import DropBefore, LoseReply
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until

REPLACEMENTS = int(os.environ.get("BOWLINE_TEST_REPLACEMENTS", "100"))
PODS = 10
# One in so many writes of its kind kills the process. Patches add and drop the finalizer.
KILLED_EVERY = 7


@dataclass
class Scheduler:
    """Deletes each Failed request and creates the next one of its name, until enough were replaced."""

    client: KubeClient
    namespace: str
    uids: dict[str, str]  # of the pods
    replaced: int = 0
    collisions: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    handled: set[str] = field(default_factory=set)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def on_event(self, _: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
        if new is None or (new.get("status") or {}).get("phase") != "Failed":
            return
        uid = new["metadata"]["uid"]
        if uid in self.handled or self.replaced >= REPLACEMENTS:
            return
        self.handled.add(uid)
        if new["metadata"].get("finalizers"):
            self.held.append(key.name)
        task = asyncio.create_task(self._replace(key.name))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def create(self, name: str) -> None:
        body = bind_request(name, "gpu-node-0", self.namespace, podUID=self.uids[name])
        # As the webhook does at creation.
        body["metadata"]["finalizers"] = [names.FINALIZER]
        await self.client.create(BINDREQUESTS, self.namespace, body)

    async def _replace(self, name: str) -> None:
        await self.client.delete(BINDREQUESTS, self.namespace, name)
        try:
            await self.create(name)
        except AlreadyExists:
            self.collisions.append(name)
        self.replaced += 1


@asynccontextmanager
async def scheduling(stage: Stage) -> AsyncIterator[Scheduler]:
    pods = [f"pod-{number}" for number in range(PODS)]
    uids = {name: await stage.create_pod(name) for name in pods}
    scheduler = Scheduler(stage.client, stage.namespace, uids)
    watch = Reflector(stage.client, Selection(BINDREQUESTS, stage.namespace), listener=Listener(scheduler.on_event))
    watching = asyncio.create_task(watch.run())
    await watch.synced.wait()
    for name in pods:
        await scheduler.create(name)
    try:
        yield scheduler
    finally:
        watching.cancel()
        await asyncio.gather(watching, *scheduler.tasks, return_exceptions=True)


async def cannot(_: object) -> Status:
    return Status.fatal("no luck")


def check(scheduler: Scheduler) -> None:
    assert scheduler.replaced >= REPLACEMENTS
    assert scheduler.held == [], "no finalizer of Bowline may be on a Failed request"
    assert scheduler.collisions == []


@pytest.mark.timeout(max(300, REPLACEMENTS))
async def test_a_failed_request_is_replaced_under_its_name_without_a_collision(stage: Stage) -> None:
    plugin = Scripted(effects=True, pre_bind=cannot)
    async with stage.working(plugin), scheduling(stage) as scheduler:
        await until(lambda: scheduler.replaced >= REPLACEMENTS)
    check(scheduler)
    assert plugin.uids("rollback"), "there was something to roll back"


@pytest.mark.timeout(max(300, REPLACEMENTS * 2))
async def test_a_reconciler_killed_between_writes_leaves_no_finalizer_on_failed(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """Killed before Failed is stored, after it is, and after the finalizer is dropped."""
    proxy, access = proxy_route
    loop = asyncio.get_running_loop()
    killed = asyncio.Event()
    kills = 0

    def kill() -> None:
        loop.call_soon_threadsafe(killed.set)

    patches = CallMatch(("patch",), names.PLURAL, "")
    reports = CallMatch(("patch",), names.PLURAL, "status")
    proxy.add(
        FaultRule(DropBefore(kill), reports, every=KILLED_EVERY),
        FaultRule(LoseReply(kill), reports, every=KILLED_EVERY + 4),
        FaultRule(LoseReply(kill), patches, every=KILLED_EVERY),
    )
    async with scheduling(stage) as scheduler:
        while scheduler.replaced < REPLACEMENTS:
            killed.clear()
            plugin = Scripted(effects=True, pre_bind=cannot)
            async with stage.working(plugin, access=access, lease=f"leader-{kills}") as working:
                await until(lambda: killed.is_set() or scheduler.replaced >= REPLACEMENTS)
                await working.crash()
            kills += 1
    check(scheduler)
    assert kills > 3
