"""What a plugin gets at setup works in a running reconciler: events, a background task, a watch of one namespace."""

import asyncio
from typing import Any

from bowline import BindContext, EventNote, EventSource, Handle, Status
from bowline.errors import NotFound
from bowline.resources import CONFIGMAPS, PODS
from bowline.testing.builders import configmap
from tests.reconciler.stage import Scripted, Stage

KEY = "ready"


class Plugin(Scripted):
    """Waits for a ConfigMap of one namespace, and sends an event."""

    async def setup(self, handle: Handle) -> None:
        self.record = handle.record
        self.polls = asyncio.Event()
        handle.background("poll", self._poll)

    async def _poll(self) -> None:
        self.polls.set()
        await asyncio.Event().wait()

    async def pre_bind(self, ctx: BindContext) -> Status:
        assert ctx.pod is not None
        if ctx.request.key.name == "denied":
            return Status.fatal("no seat", "NoSeat")
        try:
            await ctx.client.get(CONFIGMAPS, ctx.request.key.namespace, KEY)
        except NotFound:
            reference = CONFIGMAPS.ref(configmap_in(ctx.request.key.namespace))
            return Status.wait("not ready", reference)
        self.record(EventNote(PODS.ref({**ctx.pod}), "SeatTaken", "a seat is taken"))
        return Status.ok()


def configmap_in(namespace: str) -> dict[str, Any]:
    body = configmap(KEY)
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}}


async def test_events_tasks_and_namespaced_watches(stage: Stage) -> None:
    plugin = Plugin(sources=[EventSource(CONFIGMAPS, namespace=stage.namespace)])
    async with stage.working(plugin):
        async with asyncio.timeout(60):
            await plugin.polls.wait()
        await stage.create_pod()
        await stage.request_bind()
        await stage.create_pod("denied")
        await stage.request_bind("denied")
        assert (await stage.phase("denied", "Failed"))["reason"].startswith("scripted/NoSeat: ")
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap(KEY))
        await stage.phase("pod", "Succeeded")
        await stage.event("pod", "SeatTaken")
