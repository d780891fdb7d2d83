"""Many pods and BindRequests concurrently, with a progress bar: the last scene of the demo.

The pods are created first and not timed: the measurement is from decisions to bound pods.
"""

import asyncio
import sys
import time

from bowline.api import names
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.resources import BINDREQUESTS, PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server

# The concurrency of one scheduler.
REQUEUE = 32
NAMESPACE = "default"
LABEL = "demo=many"
PATIENCE_S = 120.0
_WIDTH = 40


def bind_many(cluster: Cluster, count: int, nodes: int) -> float:
    """Create the pods, then their requests; return the seconds from the first request to the last bound pod.

    Raises TimeoutError if some are not bound in time.
    """
    return asyncio.run(_bind_many(cluster, count, nodes))


async def _bind_many(cluster: Cluster, count: int, nodes: int) -> float:
    turns = asyncio.Semaphore(REQUEUE)
    async with KubeClient(await load_access(api_server(cluster.kubeconfig))) as client:

        async def make_pod(index: int) -> str:
            async with turns:
                stored_pod = await client.create(PODS, NAMESPACE, _pod(index))
                return str(stored_pod["metadata"]["uid"])

        async def make_request(index: int, uid: str) -> None:
            async with turns:
                await client.create(BINDREQUESTS, NAMESPACE, _request(index, uid, f"gpu-node-{index % nodes}"))

        uids = await asyncio.gather(*(make_pod(index) for index in range(count)))
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for index, uid in enumerate(uids):
                tasks.create_task(make_request(index, uid))
            await _watch_progress(client, count)
        return time.monotonic() - began


async def _watch_progress(client: KubeClient, count: int) -> None:
    unbound = PODS.as_metadata()
    left = count
    while left:
        left = len(await client.list_all(unbound, NAMESPACE, label_selector=LABEL, field_selector="spec.nodeName="))
        _draw(count - left, count)
        await asyncio.sleep(0.1)


def _draw(number: int, count: int) -> None:
    full = _WIDTH * number // count
    end = "\n" if number == count else ""
    if sys.stdout.isatty():
        print(f"\r[{'#' * full}{'.' * (_WIDTH - full)}] {number}/{count}", end=end, flush=True)
    elif number == count:
        print(f"[{'#' * _WIDTH}] {number}/{count}")


def _pod(index: int) -> dict[str, object]:
    return {
        "metadata": {"name": f"many-{index}", "labels": {"demo": "many"}},
        "spec": {
            "schedulerName": "bowline",
            "containers": [{"name": "main", "image": "registry.example/job:1"}],
        },
    }


def _request(index: int, uid: str, node: str) -> dict[str, object]:
    name = f"many-{index}"
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "labels": {"demo": "many"}, "ownerReferences": [owner]},
        "spec": {"podName": name, "selectedNode": node, "receivedResourceType": "Regular"},
    }
