"""The GPU inventory of the cluster: labels of the nodes, RuntimeClasses, and the mode of NVIDIA's GPU operator.

Of a node two labels are kept. Neither serving nor readiness depends on the inventory: a rule that lacks it is not
applied. It is absent without permission, before the first sync, and while its watch is interrupted.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bowline.api import names
from bowline.api.gpu_operator import GpuRuntime, operator_mode, transform_policy
from bowline.api.meta import Object, ObjectKey, identity_of
from bowline.framework.interface.plugin import Inventory
from bowline.kube.client import KubeClient
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import CLUSTERPOLICIES, NODES, RUNTIMECLASSES, Selection

_LABELS = (names.NODE_GPU_COUNT, names.NODE_GPU_MEMORY)
_COUNT = re.compile(r"[0-9]{1,9}")


class InventoryWatcher:
    """Watches while the process runs, and provides the current inventory."""

    def __init__(self) -> None:
        self._inventory: GpuInventory | None = None

    def current(self) -> Inventory | None:
        """Return the current inventory; None where it is not known. Cheap: called for every review."""
        return self._inventory.current() if self._inventory is not None else None

    async def run(self, client: KubeClient) -> None:
        """Watch until cancelled."""
        self._inventory = inventory = GpuInventory(client)
        async with asyncio.TaskGroup() as tasks:
            for reflector in inventory.reflectors:
                tasks.create_task(reflector.run())


class GpuInventory:
    """The watched inventory."""

    def __init__(self, client: KubeClient) -> None:
        self._nodes = Reflector(
            client, Selection(NODES.as_metadata()), listener=Listener(self._node_event), transform=transform_node
        )
        classes = RUNTIMECLASSES.as_metadata()
        self._classes = Reflector(client, Selection(classes, is_optional=True), transform=transform_class)
        self._policies = Reflector(client, Selection(CLUSTERPOLICIES, is_optional=True), transform=transform_policy)
        self._latest_inventory: Inventory | None = None

    @property
    def reflectors(self) -> tuple[Reflector, ...]:
        """The watches, to be run."""
        return (self._nodes, self._classes, self._policies)

    def current(self) -> Inventory | None:
        """Return the inventory; None while the watch of the nodes is not healthy."""
        if self._nodes.last_error is not None:
            return None
        if self._latest_inventory is None:
            # Computed on demand: a starting cluster causes thousands of node events and few pods.
            self._latest_inventory = inventory_of(self._nodes.store.values())
        return replace(self._latest_inventory, gpu_runtime=self._runtime())

    def _runtime(self) -> GpuRuntime:
        is_known = self._classes.last_error is None
        classes = frozenset(key.name for key in self._classes.store) if is_known else None
        return GpuRuntime(operator_mode(self._policies.store.values()), classes)

    def _node_event(self, _: EventType, __: ObjectKey, old: Object | None, new: Object | None) -> None:
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


def transform_class(runtime_class: dict[str, Any]) -> Object:
    """Keep the identity of a RuntimeClass."""
    return {"metadata": identity_of(runtime_class)}


def transform_node(node: dict[str, Any]) -> Object:
    """Keep a node's identity and its GPU labels."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    identity = {key: metadata[key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": identity | {"labels": {key: labels[key] for key in _LABELS if key in labels}}}
