"""What the cluster's GPUs are like: whether they are named by CDI, and nodes with fake GPUs. Pure.

The state of two watches.
Whether a share can work in the cluster at all is the webhook's to say (``bowline_webhook.inventory``).
Where the ClusterPolicy is not installed, not readable or without the field, devices are named by their UUIDs, as
every version did before CDI. A changed policy applies to shares that are bound from then on: a bound share keeps its
ConfigMaps. It is watched, not asked once at the start: the operator is often installed after Bowline.
"""

from typing import Any

from bowline.api.gpu_operator import OperatorMode, operator_mode
from bowline.api.meta import Object, ObjectKey, identity_of, key_of


class Detection:
    """What the watches show. Its ``*_changed`` methods are event handlers."""

    def __init__(self) -> None:
        self._policies: dict[ObjectKey, Object] = {}
        self._fake_nodes: set[str] = set()

    @property
    def mode(self) -> OperatorMode:
        """How containers get devices."""
        return operator_mode(self._policies.values())

    def uses_cdi(self) -> bool:
        """Return whether devices are named in the form of CDI."""
        return self.mode in (OperatorMode.CDI, OperatorMode.NRI, OperatorMode.OLD_NRI)

    def is_fake(self, node: str) -> bool:
        """Return whether the node's GPUs are fake."""
        return node in self._fake_nodes

    def policy_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self._policies[key_of(new)] = new
        elif old is not None:
            self._policies.pop(key_of(old), None)

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None:
            self._fake_nodes.add(key_of(new).name)
        elif old is not None:
            self._fake_nodes.discard(key_of(old).name)


def transform_identity(raw: dict[str, Any]) -> Object:
    """Keep an object's identity."""
    return {"metadata": identity_of(raw)}
