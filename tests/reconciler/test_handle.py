"""What a plugin gets at setup works in a running reconciler: a queue, a watch of one namespace."""

import asyncio
from typing import Any

from bowline import BindContext, EventSource, Handle, ObjectKey, Status
from bowline.errors import NotFound
from bowline.resources import CONFIGMAPS
from bowline.testing.builders import configmap
from tests.reconciler.stage import Scripted, Stage

KEY = "ready"


class Plugin(Scripted):
    """Waits for a ConfigMap of one namespace, and enqueues the request."""

    async def setup(self, handle: Handle) -> None:
        self.processed = asyncio.Event()
        self.enqueue = handle.worker("queue", self._process)

    async def _process(self, _: ObjectKey) -> None:
        self.processed.set()

    async def pre_bind(self, ctx: BindContext) -> Status:
        assert ctx.pod is not None
        if ctx.request.key.name == "denied":
            return Status.fatal("no seat", "NoSeat")
        try:
            await ctx.client.get(CONFIGMAPS, ctx.request.key.namespace, KEY)
        except NotFound:
            reference = CONFIGMAPS.ref(configmap_in(ctx.request.key.namespace))
            return Status.wait("not ready", reference)
        self.enqueue(ctx.request.key)
        return Status.ok()


def configmap_in(namespace: str) -> dict[str, Any]:
    body = configmap(KEY)
    return {**body, "metadata": {**body["metadata"], "namespace": namespace}}


async def test_queues_and_namespaced_watches(stage: Stage) -> None:
    plugin = Plugin(sources=[EventSource(CONFIGMAPS, namespace=stage.namespace)])
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        await stage.create_pod("denied")
        await stage.request_bind("denied")
        assert (await stage.phase("denied", "Failed"))["reason"].startswith("scripted/NoSeat: ")
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap(KEY))
        await stage.phase("pod", "Succeeded")
        async with asyncio.timeout(60):
            await plugin.processed.wait()
