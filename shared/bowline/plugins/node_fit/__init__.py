"""Checks with live reads, just before the bind, whether the pod still fits on its node.

The scheduler may have decided on stale data. The kubelet rejects a pod that does not fit: it ends Failed, and its
controller has to create another one. With this plugin the pod stays unbound and the scheduler is advised to choose
another node. Off by default: each bind costs a GET of the node and a list of its pods.

The rules are in ``rules``; ``assumed_pods`` prevents two attempts from using the same resources. It writes nothing.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any

from bowline.api.meta import uid_of
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.reason import Reason
from bowline.kube.errors import NotFound, Unreadable
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import NODES, PODS, RESOURCECLAIMS, Selection
from bowline.plugin import (
    Access,
    AccessRule,
    BindContext,
    Done,
    ObjectKey,
    PluginConfig,
    Settings,
    Status,
    Suggestion,
)
from bowline.plugins.node_fit.assumed_pods import AssumedPod, AssumedPods, not_listed
from bowline.plugins.node_fit.rules import (
    Amounts,
    claims_of,
    decided_devices,
    decided_requests,
    exclusive_devices,
    occupied_by,
    total,
    verdict,
)

# Concurrent reads of the claims on a node.
CONCURRENT_READS = 8


class NodeFit(BuiltinBindingPlugin):
    """Rejects a node without enough free resources."""

    name = "node_fit"
    # After all plugins that prepare: what they create on the node, such as a reservation pod, is counted.
    after = ("gpu_sharing", "volume_binding", "dynamic_resources")
    # Nodes and pods are read by the rights of the reconciler.
    access = Access(rules=(AccessRule("resourceclaims", ("get",), "resource.k8s.io"),))

    def __init__(self, args: PluginConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._assumed_pods = AssumedPods()

    async def run(self) -> None:
        self._assumed_pods.clear()

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Check the node with live reads; assume the pod on it if it fits."""
        assert ctx.pod is not None  # noqa: S101 - an attempt has a pod
        devices = decided_devices(ctx.spec)
        requests = decided_requests(ctx.pod, ctx.spec)
        node, pod_uid = ctx.spec.selected_node, ctx.request.pod_uid
        own_pod = AssumedPod(node, pod_uid, requests, claims_of(ctx.pod))
        check = self._assumed_pods.begin(node)
        try:
            live_node = await ctx.client.get(NODES, "", node)
            on_node = Selection(PODS, field_selector=f"spec.nodeName={node}")
            pods = await ctx.client.list_reduced(on_node, lambda pod: (uid_of(pod), occupied_by(pod), claims_of(pod)))
            other_claims = frozenset[ObjectKey]().union(*(claims for _, _, claims in pods)) - own_pod.claims
            taken = await allocated(ctx.client, other_claims, devices) if devices else {}
        except NotFound:
            return Status.fatal(f"node {node} no longer exists", Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE)
        finally:
            self._assumed_pods.end(check)
        # No await from here on: no other check may run between the verdict and the entry.
        usage_by_pod = {uid: amounts for uid, amounts, _ in pods if uid != pod_uid}
        assumed_requests = not_listed(check.assumed_pods, frozenset(usage_by_pod), own_pod)
        usage = total((*usage_by_pod.values(), taken))
        status = verdict(live_node, requests, usage, total(assumed_requests))
        if isinstance(status, Done):
            self._assumed_pods.assume(ctx.request.key, own_pod)
        else:
            self._assumed_pods.drop(ctx.request.key)
        return status

    def on_failure(self, ctx: BindContext) -> None:
        """Forget the pod: a request in backoff must not block others."""
        self._assumed_pods.drop(ctx.request.key)

    async def forget(self, key: ObjectKey) -> None:
        """Forget the pod: it is listed on its node by now, or will not be bound."""
        self._assumed_pods.drop(key)

    def sizes(self) -> Mapping[str, int]:
        return {"assumedPods": len(self._assumed_pods)}


async def allocated(client: ObjectClient, claims: Iterable[ObjectKey], devices: Collection[str]) -> Amounts:
    """Return the devices that these claims have for themselves, up to the first of ``devices``. Raises the client's
    errors.
    """

    async def allocation(key: ObjectKey) -> Mapping[str, Any] | None:
        try:
            claim = await client.get(RESOURCECLAIMS, key.namespace, key.name)
        except (NotFound, Unreadable):
            return None
        return (claim.get("status") or {}).get("allocation")

    keys, taken = list(claims), dict[str, Decimal]()
    for start in range(0, len(keys), CONCURRENT_READS):
        batch = keys[start : start + CONCURRENT_READS]
        taken |= exclusive_devices(await asyncio.gather(*map(allocation, batch)))
        if not taken.keys().isdisjoint(devices):
            break
    return taken
