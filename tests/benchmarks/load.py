"""Objects to bind, and the bare client that binds them by itself: the ceiling and the floor to compare with."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import Object, format_micro_time
from bowline.kube.client import KubeClient
from bowline.kube.errors import InfrastructureError
from bowline.kube.resources import BINDREQUESTS, EVENTS, NODES, PODS, Resource
from bowline.testing.builders import bind_request, pod
from bowline_reconciler.decide.report import PREPARED_BY_US, success_report
from tests.benchmarks.rig import NAMESPACE

# As many concurrent calls as the reconciler has workers.
WORKERS = 64
# A real pod of a GPU cluster has about 3 KB; most of it environment.
_ENVIRONMENT = [{"name": f"SETTING_{number}", "value": "x" * 64} for number in range(26)]


@dataclass(frozen=True, slots=True)
class BindTarget:
    """A pod and its request, as stored."""

    pod: Object
    request: Object


async def each(count: int, act: Callable[[int], Awaitable[None]]) -> float:
    """Do something ``count`` times, WORKERS concurrently; returns the seconds it took."""
    numbers = iter(range(count))
    began = time.perf_counter()

    async def work() -> None:
        for number in numbers:
            await act(number)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(WORKERS, count)):
            workers.create_task(work())
    return time.perf_counter() - began


def big_pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod of about 3 KB."""
    body = pod(name, NAMESPACE, **spec)
    body["spec"]["containers"][0]["env"] = _ENVIRONMENT
    return body


async def create_all(client: KubeClient, resource: Resource, bodies: Sequence[Object]) -> list[Object]:
    """Create objects, those with a namespace in that of their body; return them as stored, in the same order."""
    stored: dict[int, Object] = {}

    async def create(number: int) -> None:
        namespace = bodies[number]["metadata"].get("namespace", "")
        stored[number] = await client.create(resource, namespace, bodies[number])

    await each(len(bodies), create)
    return [stored[number] for number in range(len(bodies))]


def requests_for(pods: Sequence[Object], nodes: int) -> list[Object]:
    """A request for each stored pod; the nodes take turns."""
    return [
        bind_request(metadata["name"], f"gpu-node-{number % nodes}", metadata["namespace"], metadata["uid"])
        for number, metadata in enumerate(body["metadata"] for body in pods)
    ]


async def make(client: KubeClient, prefix: str, count: int, nodes: int, **spec: Any) -> list[BindTarget]:
    """Create unbound pods and their requests."""
    pods = await create_all(client, PODS, [big_pod(f"{prefix}-{number}", **spec) for number in range(count)])
    requests = await create_all(client, BINDREQUESTS, requests_for(pods, nodes))
    return [BindTarget(*target) for target in zip(pods, requests, strict=True)]


async def bind(client: KubeClient, target: BindTarget) -> None:
    """The minimum of a binder for one request: the reconciler's writes, with its bodies."""
    name, uid = target.pod["metadata"]["name"], target.pod["metadata"]["uid"]
    node = target.request["spec"]["selectedNode"]
    start = datetime.now(UTC)
    await post_binding(client, target.pod, node)
    request = decode_bind_request(target.request)
    block = success_report(request, PREPARED_BY_US, None, start, datetime.now(UTC)).status
    version = target.request["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "status": block}
    await client.patch(BINDREQUESTS, NAMESPACE, name, body, subresource="status")
    await client.create(EVENTS, NAMESPACE, _event(name, uid, node))


async def post_binding(client: KubeClient, pod: Object, node: str) -> None:
    """Bind a pod to a node."""
    metadata = pod["metadata"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": metadata["name"],
            "namespace": NAMESPACE,
            "uid": metadata["uid"],
            # The second replaces the request's UID: only the size of the write counts.
            "annotations": {names.RECEIVED_RESOURCE_TYPE: "Regular", names.PREPARED_FOR: metadata["uid"]},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.create(PODS, NAMESPACE, binding, name=metadata["name"], subresource="binding")


def _event(name: str, uid: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": NAMESPACE},
        "eventTime": format_micro_time(datetime.now(UTC)),
        "reportingController": names.EVENT_SOURCE,
        "reportingInstance": "bench",
        "action": "Binding",
        "reason": "Bound",
        "type": "Normal",
        "note": f"bound to node {node}",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": uid},
    }


async def clear(client: KubeClient) -> None:
    """Delete every pod and request of the benchmark: no garbage collector runs here."""
    for resource in (BINDREQUESTS, PODS):
        objects = await client.list_all(resource.as_metadata(), NAMESPACE)

        async def delete(number: int, resource: Resource = resource, objects: Sequence[Object] = objects) -> None:
            await client.delete(resource, NAMESPACE, objects[number]["metadata"]["name"], grace_period_s=0)

        await each(len(objects), delete)


async def _create(client: KubeClient, body: dict[str, Any]) -> dict[str, Any]:
    """Create a pod; an API server that is overloaded gets it again."""
    while True:
        try:
            return await client.create(PODS, NAMESPACE, body)
        except InfrastructureError:
            await asyncio.sleep(0.1)


async def make_bound(client: KubeClient, start: int, count: int, nodes: int) -> None:
    """Create pods that are bound from the beginning: one write each."""

    async def create_pod(number: int) -> None:
        name = f"bound-{start + number}"
        await _create(client, big_pod(name, nodeName=f"gpu-node-{number % nodes}"))

    await each(count, create_pod)


async def make_pending(client: KubeClient, start: int, count: int) -> int:
    """Create distinct pods of about 2 KB without a decision; returns the size of one in bytes."""
    size = 0

    async def create_pod(number: int) -> None:
        nonlocal size
        body = pod(f"pending-{start + number}", NAMESPACE)
        values = random.Random(start + number)  # noqa: S311 - repeatable
        body["metadata"]["labels"] = {"job": f"train-{start + number}", "user": f"{values.getrandbits(32):x}"}
        body["spec"]["containers"][0]["env"] = [
            {"name": f"VARIABLE_{n}", "value": f"{values.getrandbits(64):x}"} for n in range(16)
        ]
        stored_pod = await _create(client, body)
        stored_pod["metadata"].pop("managedFields", None)
        size = len(orjson.dumps(stored_pod))

    await each(count, create_pod)
    return size


async def make_nodes(client: KubeClient, count: int) -> None:
    """Create bare nodes beside those of the rig."""

    async def create_node(number: int) -> None:
        await client.create(NODES, "", {"metadata": {"name": f"extra-{number}"}})

    await each(count, create_node)
