"""What a node does in the kit's cluster, which has none: the agents of reservation pods report their devices."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import Invalid, NotFound
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import PODS, Selection
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server


@contextmanager
def reported_devices(cluster: Cluster) -> Iterator[None]:
    """Until the block ends, each reservation pod reports a device: its own UID."""
    cluster.make_namespace(names.RESERVATION_APP)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_report(cluster, stop),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _report(cluster: Cluster, stop: asyncio.Event) -> None:
    unreported: asyncio.Queue[Object] = asyncio.Queue()

    def on_event(_: EventType, __: ObjectKey, ___: Object | None, pod: Object | None) -> None:
        if pod is not None and names.RESERVED_DEVICE not in pod["metadata"].get("annotations", {}):
            unreported.put_nowait(pod)

    async with (
        KubeClient(load_access(api_server(cluster.kubeconfig)), ClientOptions(name="node-agent")) as client,
        asyncio.TaskGroup() as tasks,
    ):
        selection = Selection(PODS, names.RESERVATION_APP)
        working = [
            tasks.create_task(Reflector(client, selection, listener=Listener(on_event)).run()),
            tasks.create_task(_answer(client, unreported)),
        ]
        await stop.wait()
        for task in working:
            task.cancel()


async def _answer(client: KubeClient, unreported: asyncio.Queue[Object]) -> None:
    while True:
        meta = (await unreported.get())["metadata"]
        annotations = {names.RESERVED_DEVICE: f"GPU-{meta['uid']}"}
        # Deleted; another one that has its name by now, and another UID, has an event of its own.
        with suppress(NotFound, Invalid):
            body = {"metadata": {"uid": meta["uid"], "annotations": annotations}}
            await client.patch(PODS, meta["namespace"], meta["name"], body)
