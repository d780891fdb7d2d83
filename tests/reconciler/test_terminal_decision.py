"""A terminal decision that has begun is finished, although a call fails and its reason is gone before it is repeated.

A rollback has removed what the plugins had prepared; another attempt would bind a pod that lacks it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import AlreadyExists, NotFound
from bowline.kube.resources import CONFIGMAPS, NODES
from bowline.localcluster.cluster import Cluster
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.faults import FaultAnswer
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until

NODE = "terminal-node"
# The writes between the decision and its record, in order.
WRITES = {
    "the effect's removal": CallMatch(("delete",), "configmaps"),
    "the finalizer's removal": CallMatch(("patch",), names.PLURAL, ""),
    "the record": CallMatch(("patch",), names.PLURAL, "status"),
}


class Remembering(Scripted):
    """Creates a ConfigMap once, and remembers that, as plugins may; then waits."""

    def __init__(self) -> None:
        super().__init__(effects=True, pre_bind=self._make, rollback=self._remove)
        self.answer = Status.wait("a volume")

    async def _make(self, ctx: BindContext) -> Status:
        if not ctx.state.get("made"):
            with suppress(AlreadyExists):
                await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, configmap("effect"))
        ctx.state["made"] = True
        return self.answer

    async def _remove(self, ctx: BindContext) -> Status:
        with suppress(NotFound):
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, "effect")
        return Status.ok()


async def change_node(stage: Stage, body: dict[str, Any]) -> None:
    await stage.client.patch(NODES, "", NODE, {"spec": body})


@pytest.mark.parametrize("write", WRITES)
async def test_a_request_that_is_rolled_back_fails_although_its_node_is_usable_again(
    bare_cluster: Cluster, stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess], write: str
) -> None:
    proxy, access = proxy_route
    with suppress(AlreadyExists):
        await stage.client.create(NODES, "", {"metadata": {"name": NODE}})
    await change_node(stage, {"unschedulable": None})
    plugin = Remembering()
    async with stage.working(plugin, access=access) as working:
        await stage.create_pod(tolerations=[])
        await stage.request_bind(node=NODE)
        await until(lambda: working.sizes["waitIndex"] == 1)
        plugin.answer = Status.ok()  # of another attempt
        repaired = _repair_at(proxy, WRITES[write], bare_cluster)
        await change_node(stage, {"unschedulable": True})
        status = await stage.phase("pod", "Failed", "Succeeded")
        assert repaired(), "the write is met"
    assert status["reason"].startswith("NodeUnschedulable")
    assert plugin.points("pod")[-1] == "rollback"
    assert await stage.client.list_all(CONFIGMAPS, stage.namespace) == []
    assert "nodeName" not in (await stage.pod())["spec"]
    assert "finalizers" not in (await stage.request())["metadata"]


def _repair_at(proxy: FaultProxy, match: CallMatch, cluster: Cluster) -> Callable[[], bool]:
    """Disturb the first such write, with the node usable again before its reply; returns whether it was met."""
    met = threading.Event()

    def repair(_: ProxiedCall) -> None:
        if not met.is_set():
            cluster.api.patch(f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": None}})
            met.set()

    proxy.inspect(match, repair)
    proxy.add(FaultRule(FaultAnswer(503), match, nth=1))
    return met.is_set
