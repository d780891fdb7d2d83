"""The GPU inventory of the nodes, for warnings: no node has that many GPUs, or none has the memory label.

Of a node two labels are kept. Neither serving nor readiness depends on the inventory: a rule that lacks it is not
applied. It is absent without permission, before the first sync, and while its watch is interrupted.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.framework.plugin import Inventory
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import wait_for_access
from bowline.kube.metrics import KubeMetrics
from bowline.kube.reflector import EventType, Reflector
from bowline.kube.resources import NODES, Selection
from bowline.runtime.tasks import ShutdownSignal

_LABELS = (names.NODE_GPU_COUNT, names.NODE_GPU_MEMORY)
_COUNT = re.compile(r"[0-9]{1,9}")


class InventoryWatcher:
    """Watches the nodes while the process runs, and provides their current inventory."""

    def __init__(self, kubeconfig: Path | None, metrics: KubeMetrics) -> None:
        self._kubeconfig = kubeconfig
        self._metrics = metrics
        self._inventory: GpuInventory | None = None

    def current(self) -> Inventory | None:
        """Return the current inventory; None where it is not known. Cheap: called for every review."""
        return self._inventory.current() if self._inventory is not None else None

    async def run(self, stop: ShutdownSignal) -> None:
        """Watch until cancelled, or until ``stop`` while there is no access to an API server."""
        access = await wait_for_access(self._kubeconfig, stop, lambda _: None)
        if access is None:
            return
        async with KubeClient(
            access, ClientOptions(name=names.FIELD_MANAGER_WEBHOOK, metrics=self._metrics)
        ) as client:
            self._inventory = GpuInventory(client)
            await self._inventory.reflector.run()


class GpuInventory:
    """The watched inventory."""

    def __init__(self, client: KubeClient) -> None:
        self.reflector = Reflector(
            client, Selection(NODES.as_metadata()), on_event=self._on_event, transform=transform_node
        )
        self._latest_inventory: Inventory | None = None

    def current(self) -> Inventory | None:
        """Return the inventory; None while the watch is not healthy."""
        if self.reflector.last_error is not None:
            return None
        if self._latest_inventory is None:
            # Computed on demand: a starting cluster causes thousands of node events and few pods.
            self._latest_inventory = inventory_of(self.reflector.store.values())
        return self._latest_inventory

    def _on_event(self, _: EventType, __: ObjectKey, old: Object | None, new: Object | None) -> None:
        # Most events of a node change its status only.
        if old is None or new is None or old["metadata"]["labels"] != new["metadata"]["labels"]:
            self._latest_inventory = None


def inventory_of(nodes: Iterable[Object]) -> Inventory:
    """Return the inventory of these nodes. A count that is not a number counts as 0."""
    most = nodes_with_label = 0
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        count = labels.get(names.NODE_GPU_COUNT, "")
        most = max(most, int(count) if _COUNT.fullmatch(count) else 0)
        nodes_with_label += bool(labels.get(names.NODE_GPU_MEMORY))
    return Inventory(max_gpus_per_node=most, nodes_with_memory_label=nodes_with_label)


def transform_node(node: dict[str, Any]) -> Object:
    """Keep a node's identity and its GPU labels."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    identity = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": identity | {"labels": {key: labels[key] for key in _LABELS if key in labels}}}
