"""Failed means released: a scheduler may delete a Failed request and create another of its name in the same cycle.

KAI-Scheduler does so. If the finalizer were still on the Failed request, its name would be taken, and the rest of the
gang would get no requests. Here a scheduler does it as soon as a watch reports Failed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.framework.plugin_status import Status
from bowline.kube.client import KubeClient
from bowline.kube.errors import AlreadyExists
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, Selection
from bowline.testing.builders import bind_request
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until

REPLACEMENTS = 30
PODS = 10


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


async def test_a_failed_request_is_replaced_under_its_name_without_a_collision(stage: Stage) -> None:
    plugin = Scripted(effects=True, pre_bind=cannot)
    async with stage.working(plugin), scheduling(stage) as scheduler:
        await until(lambda: scheduler.replaced >= REPLACEMENTS)
    assert scheduler.held == [], "no finalizer of Bowline may be on a Failed request"
    assert scheduler.collisions == []
    assert plugin.uids("rollback"), "there was something to roll back"
