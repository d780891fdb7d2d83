"""Admission while webhook pods are deleted: pods are created at a steady rate, with dry run, and failures counted."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.kubeconfig import api_server
from tests.localnode.cluster import NAMESPACE, NodeCluster
from tests.node.steps import NodeLive
from tests.upgrade.load import Load

_RATE = 30.0
# A webhook's termination grace period is 75 s, of which it uses 30 s.
_REPLACED_S = 180.0
_WEBHOOKS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=webhook"


@asynccontextmanager
async def running_load(node: NodeCluster) -> AsyncIterator[Load]:
    """Create pods until the block ends; prints the failures."""
    access = load_access(api_server(node.cluster.kubeconfig))
    async with KubeClient(access, ClientOptions(name="availability")) as client:
        load = Load(client, _RATE)
        async with load.running():
            yield load
    sys.stdout.write(f"{load.failures.total()} of {load.begun_count} failed {dict(load.failures)}\n")


def webhooks(live: NodeLive) -> list[dict[str, Any]]:
    """The webhook's pods that are not being deleted."""
    items = live.cluster.api.get(_WEBHOOKS)["items"]
    return [webhook_pod for webhook_pod in items if not webhook_pod["metadata"].get("deletionTimestamp")]


def await_replacement(live: NodeLive, former_names: set[str], count: int) -> None:
    """Wait until so many webhooks are Ready, and none of the deleted ones exists."""

    def is_so() -> bool:
        items = live.cluster.api.get(_WEBHOOKS)["items"]
        ready = [
            webhook_pod
            for webhook_pod in items
            if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions(webhook_pod))
        ]
        return len(items) == len(ready) == count and not former_names & {
            webhook_pod["metadata"]["name"] for webhook_pod in items
        }

    live.until(f"{count} webhooks are Ready", is_so, _REPLACED_S)


def conditions(webhook_pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod's conditions."""
    return list(webhook_pod["status"].get("conditions") or ())


async def until_more(live: NodeLive, load: Load, count: float) -> None:
    """Wait until so many more requests have ended."""
    end = load.ended_count + count
    await asyncio.to_thread(live.until, "the load continues", lambda: load.ended_count > end)


async def test_both_webhooks_deleted_together_fail_at_most_one_request_in_200(
    node: NodeCluster, live: NodeLive
) -> None:
    async with running_load(node) as load:
        await until_more(live, load, 3 * _RATE)
        names = {webhook_pod["metadata"]["name"] for webhook_pod in webhooks(live)}
        assert len(names) == 2
        node.cluster.kubectl("delete", "pods", *names, f"--namespace={NAMESPACE}", "--wait=false")
        await asyncio.to_thread(await_replacement, live, names, 2)
        await until_more(live, load, 3 * _RATE)
    assert load.failures.total() <= load.begun_count * 0.005, load.failures


async def test_webhooks_evicted_one_after_another_fail_no_request(node: NodeCluster, live: NodeLive) -> None:
    async with running_load(node) as load:
        await until_more(live, load, _RATE)
        for name in [webhook_pod["metadata"]["name"] for webhook_pod in webhooks(live)]:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
            await asyncio.to_thread(node.cluster.api.post, path, body)
            await asyncio.to_thread(await_replacement, live, {name}, 2)
    assert load.failures.total() == 0, load.failures
