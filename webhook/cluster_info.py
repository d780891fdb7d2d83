"""Cluster facts beside the object under review; only the enabled sources are watched.

- The GPU inventory of the nodes, for warnings: no node has that many GPUs, or none has the memory label. Of a node
  two labels are kept.
- The pods with an unfinished BindRequest, for plugins that guard Bindings. Of a request its pod's name is kept.

Neither serving nor readiness depends on them: a rule that lacks its fact is not applied. A fact is absent without
permission, before the first sync, and while its watch is interrupted: stale requests would deny Bindings of pods
whose requests were deleted long ago.
"""

import asyncio
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.api import names
from shared.api.bindrequest import Phase
from shared.api.meta import Object, ObjectKey, key_of
from shared.framework.plugin import Inventory, Plugin, overrides
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import wait_for_access
from shared.kube.metrics import KubeMetrics
from shared.kube.reflector import EventType, Reflector
from shared.kube.resources import NODES, UNFINISHED_BINDREQUESTS, Selection
from shared.runtime.tasks import ShutdownSignal
from webhook.review import ClusterInfo

_KEPT_LABELS = (names.NODE_GPU_COUNT, names.NODE_GPU_MEMORY)
_COUNT = re.compile(r"[0-9]{1,9}")
_NO_PODS: frozenset[ObjectKey] = frozenset()


@dataclass(frozen=True, slots=True)
class EnabledSources:
    """The enabled sources."""

    inventory: bool
    requested: bool

    def __bool__(self) -> bool:
        return self.inventory or self.requested


def enabled_sources(inventory: bool, plugins: Sequence[Plugin]) -> EnabledSources:
    """Return the enabled sources: the inventory by command line, the pods with a BindRequest if a plugin needs
    them.
    """
    return EnabledSources(inventory, any(overrides(plugin, "validate_binding") for plugin in plugins))


class ClusterInfoWatcher:
    """Watches the enabled sources and provides their current state."""

    def __init__(self, sources: EnabledSources, kubeconfig: Path | None, metrics: KubeMetrics) -> None:
        self.sources = sources
        self._kubeconfig = kubeconfig
        self._metrics = metrics
        self._inventory: GpuInventory | None = None
        self._requested: PodsWithBindRequest | None = None

    def current(self) -> ClusterInfo:
        """Return the current facts. Cheap: called for every review."""
        return ClusterInfo(
            self._inventory.current() if self._inventory is not None else None,
            self._requested.current() if self._requested is not None else _NO_PODS,
        )

    async def run(self, stop: ShutdownSignal) -> None:
        """Watch until cancelled, or until ``stop`` while there is no access to an API server."""
        access = await wait_for_access(self._kubeconfig, stop, lambda _: None)
        if access is None:
            return
        options = ClientOptions(name=names.FIELD_MANAGER_WEBHOOK, metrics=self._metrics)
        async with KubeClient(access, options) as client, asyncio.TaskGroup() as tasks:
            if self.sources.inventory:
                self._inventory = GpuInventory(client)
                tasks.create_task(self._inventory.reflector.run(), name="reflector nodes")
            if self.sources.requested:
                self._requested = PodsWithBindRequest(client)
                tasks.create_task(self._requested.reflector.run(), name="reflector bindrequests")


class GpuInventory:
    """The watched inventory."""

    def __init__(self, client: KubeClient) -> None:
        self.reflector = Reflector(
            client, Selection(NODES.as_metadata()), on_event=self._on_event, transform=transform_node
        )
        self._counted: Inventory | None = None

    def current(self) -> Inventory | None:
        """Return the inventory; None while the watch is not healthy."""
        if self.reflector.last_error is not None:
            return None
        if self._counted is None:
            # Computed on demand: a starting cluster causes thousands of node events and few pods.
            self._counted = inventory_of(self.reflector.store.values())
        return self._counted

    def _on_event(self, _: EventType, __: ObjectKey, old: Object | None, new: Object | None) -> None:
        # Most events of a node change its status only.
        if old is None or new is None or old["metadata"]["labels"] != new["metadata"]["labels"]:
            self._counted = None


class PodsWithBindRequest:
    """The watched set of pods."""

    def __init__(self, client: KubeClient) -> None:
        self._requests: dict[ObjectKey, set[ObjectKey]] = {}
        self.reflector = Reflector(
            client,
            UNFINISHED_BINDREQUESTS,
            on_event=self._on_event,
            transform=transform_request,
            fallback=True,
        )

    def current(self) -> Container[ObjectKey]:
        """Return the pods; none while the watch is not healthy."""
        return self._requests if self.reflector.last_error is None else _NO_PODS

    def _on_event(self, _: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        if old is not None:
            pod = _pod_of(old)
            requests = self._requests.get(pod, set())
            requests.discard(key)
            if not requests:
                self._requests.pop(pod, None)
        if new is not None:
            self._requests.setdefault(_pod_of(new), set()).add(key)


def inventory_of(nodes: Iterable[Object]) -> Inventory:
    """Return the inventory of these nodes. A count that is not a number counts as 0."""
    most = labelled = 0
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        count = labels.get(names.NODE_GPU_COUNT, "")
        most = max(most, int(count) if _COUNT.fullmatch(count) else 0)
        labelled += bool(labels.get(names.NODE_GPU_MEMORY))
    return Inventory(max_gpus_per_node=most, nodes_with_memory_label=labelled)


def transform_node(node: dict[str, Any]) -> Object:
    """Keep a node's identity and its GPU labels."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    kept = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": kept | {"labels": {key: labels[key] for key in _KEPT_LABELS if key in labels}}}


def transform_request(request: dict[str, Any]) -> Object | None:
    """Keep a request's identity and its pod's name; None if it has Succeeded or names no pod."""
    metadata, spec = request["metadata"], request.get("spec")
    pod = spec.get("podName") if isinstance(spec, dict) else None
    if (request.get("status") or {}).get("phase") == Phase.SUCCEEDED.value or not isinstance(pod, str):
        return None
    kept = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "spec": {"podName": pod}}


def _pod_of(request: Object) -> ObjectKey:
    return ObjectKey(key_of(request).namespace, request["spec"]["podName"])
