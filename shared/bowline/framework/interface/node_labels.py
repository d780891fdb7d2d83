"""Labels of nodes, for plugins that match selectors against them: one read per node and version.

The reconciler caches nodes without most of their labels, which would cost kilobytes per node. A plugin that needs all
labels reads the node once and keeps them until the cached node has another version. The least recently used node is
evicted first, so that a cluster with more nodes than the capacity costs reads for the excess nodes only.
"""

import sys
from collections import OrderedDict

from bowline.api.meta import Object, ResourceVersion, key_of, version_of
from bowline.api.selectors import Node
from bowline.kube.errors import NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import NODES

# 1 to 2 KB each: label keys and common values are interned.
CAPACITY = 8192


class NodeLabels:
    """A cache of nodes with all their labels, bounded by ``CAPACITY``."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._nodes: OrderedDict[str, tuple[ResourceVersion, Node]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    async def get(self, cached_node: Object) -> Node | None:
        """Return the node with all its labels; None if it does not exist.

        ``cached_node`` is the reconciler's (``BindContext.node``); its resourceVersion decides whether the labels are
        read again. Raises KubeError from the read.
        """
        name, version = key_of(cached_node).name, version_of(cached_node)
        entry = self._nodes.get(name)
        if entry is not None and entry[0] == version:
            self._nodes.move_to_end(name)
            return entry[1]
        try:
            raw = await self._client.get(NODES.as_metadata(), "", name)
        except NotFound:
            self._nodes.pop(name, None)
            return None
        labels = {sys.intern(key): sys.intern(value) for key, value in (raw["metadata"].get("labels") or {}).items()}
        node = Node(name, labels)
        self._nodes[name] = (version, node)
        self._nodes.move_to_end(name)
        if len(self._nodes) > CAPACITY:
            self._nodes.popitem(last=False)
        return node
