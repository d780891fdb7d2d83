"""What the cluster's GPUs are like: whether they are named by CDI, and nodes with fake GPUs. Pure.

The state of two watches, for settings that are ``Auto``, and for warnings where a setting contradicts the cluster.
Whether a share can work in the cluster at all is the webhook's to say (``bowline_webhook.inventory``).
Where the ClusterPolicy is not installed, not readable or without the field, devices are named by their UUIDs, as
every version did before CDI. A changed policy applies to shares that are bound from then on: a bound share keeps its
ConfigMaps. Decisions 209 and 252.
"""

from typing import Any

from bowline.api.gpu_operator import cdi_of, effective_policy
from bowline.api.meta import Object, ObjectKey, identity_of, key_of
from bowline.framework.config import Settings


class Detection:
    """The settings, completed by what the watches show. Its ``*_changed`` methods are event handlers."""

    def __init__(self, settings: Settings) -> None:
        self._sharing = settings.gpu_sharing
        self._policies: dict[ObjectKey, Object] = {}
        self._fake_nodes: set[str] = set()

    @property
    def detects_fakes(self) -> bool:
        """Whether nodes with fake GPUs must be watched."""
        return self._sharing.fake_gpus == "Auto"

    def uses_cdi(self) -> bool:
        """Return whether devices are named in the form of CDI."""
        cdi = self._sharing.cdi
        return cdi_of(self._policies.values()) if cdi == "Auto" else cdi

    def contradiction(self) -> str:
        """Return how ``gpuSharing.cdi`` contradicts the ClusterPolicy; empty if it does not, or without a policy.

        CDI names are valid wherever CDI is enabled, also where they are not the default.
        """
        policy, cdi = effective_policy(self._policies.values()), self._sharing.cdi
        if policy is None or cdi == "Auto":
            return ""
        if cdi and policy["spec"]["cdi"].get("enabled") is not True:
            return "gpuSharing.cdi is true, but NVIDIA's ClusterPolicy does not enable CDI"
        if not cdi and cdi_of((policy,)):
            return "gpuSharing.cdi is false, but by NVIDIA's ClusterPolicy the runtime takes devices by CDI names"
        return ""

    def is_fake(self, node: str) -> bool:
        """Return whether the node's GPUs are fake."""
        fake = self._sharing.fake_gpus
        return node in self._fake_nodes if fake == "Auto" else fake

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
