"""The same pods with volumes, bound by a bare client: the limit that API server and volume controller set.

It knows all volumes and claims beforehand, reads nothing and decides nothing. Once it makes only the two writes that
every pod with a volume needs, the volume's claimRef and the Binding, for pods without requests; once all writes of
Bowline, for requests that are created meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, Selection
from bowline.plugins.volume_binding.rules import claim_ref_patch
from bowline.plugins.volume_binding.volumes import read_claim, read_volume
from tests.benchmarks.load import DECISIONS_AT_ONCE, BindTarget, bind, each, post_binding
from tests.benchmarks.rig import NAMESPACE


@dataclass(frozen=True, slots=True)
class BareBinder:
    """A client with the reconciler's rights, and its objects. Pod, claim and volume share their number."""

    client: KubeClient
    volumes: Sequence[Object]
    claims: Sequence[Object]
    bound: Mapping[str, asyncio.Event]

    async def volume(self, number: int) -> None:
        """Bind the pod's claim to its volume."""
        volume, claim = read_volume(self.volumes[number]), read_claim(self.claims[number])
        patch = claim_ref_patch(volume, claim)
        if patch is None:
            raise RuntimeError(f"volume {volume.name} is not free")
        await self.client.patch(PERSISTENTVOLUMES, "", volume.name, patch)
        await self.bound[claim.key.name].wait()


@asynccontextmanager
async def bare_binder(client: KubeClient) -> AsyncIterator[BareBinder]:
    """Read all objects, and watch which claims get bound."""
    volumes = _by_number(await client.list_all(PERSISTENTVOLUMES))
    claims = _by_number(await client.list_all(PERSISTENTVOLUMECLAIMS, NAMESPACE))
    bound = {claim["metadata"]["name"]: asyncio.Event() for claim in claims}

    def on_event(_: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
        if new is not None and names.BIND_COMPLETED in (new["metadata"].get("annotations") or {}):
            bound[key.name].set()

    reflector = Reflector(client, Selection(PERSISTENTVOLUMECLAIMS, NAMESPACE), listener=Listener(on_event))
    watching = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield BareBinder(client, volumes, claims, bound)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def bind_only(binder: BareBinder, pods: Sequence[Object], nodes: int) -> None:
    """Make the two writes for every pod, and no other."""

    async def bind_pod(number: int) -> None:
        await binder.volume(number)
        await post_binding(binder.client, pods[number], f"gpu-node-{number % nodes}")

    await each(len(pods), bind_pod)


async def bind_and_report(
    binder: BareBinder, scheduler: KubeClient, pods: Sequence[Object], requests: Sequence[dict[str, Any]]
) -> None:
    """Execute the requests as they are created, with every write that Bowline makes."""

    async def carry_out(number: int, request: dict[str, Any]) -> None:
        await binder.volume(number)
        await bind(binder.client, BindTarget(dict(pods[number]), request), events=True)

    async with asyncio.TaskGroup() as tasks:

        async def create(number: int) -> None:
            request = await scheduler.create(BINDREQUESTS, NAMESPACE, requests[number])
            tasks.create_task(carry_out(number, request))

        await each(len(pods), create, DECISIONS_AT_ONCE)


def _by_number(objects: Sequence[Object]) -> list[Object]:
    return sorted(objects, key=lambda obj: int(obj["metadata"]["name"].rpartition("-")[2]))
