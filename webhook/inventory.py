"""GPU inventory of the nodes, for warnings: no node has that many GPUs, or none has the memory label.

Watches the nodes' metadata only and keeps two labels. Optional: without permission, or before the first sync, the
rules that need an inventory are skipped. Serving does not wait for it.
"""

import re
from collections.abc import Iterable
from typing import Any

from shared.api import names
from shared.api.meta import Object, ObjectKey
from shared.framework.plugin import Inventory
from shared.kube.client import KubeClient
from shared.kube.reflector import EventType, Reflector
from shared.kube.resources import NODES, Selection

_KEPT = (names.NODE_GPU_COUNT, names.NODE_GPU_MEMORY)
_COUNT = re.compile(r"[0-9]{1,9}")


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
    """Transform: keep a node's identity and its GPU labels."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    return {
        "metadata": {
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": {key: labels[key] for key in _KEPT if key in labels},
        }
    }


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
