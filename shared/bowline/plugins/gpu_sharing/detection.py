"""What the cluster's GPUs are like: whether containers get devices by CDI, and which nodes have fake GPUs. Pure.

The state of two watches, for settings that are ``Auto``, and for a warning where a setting contradicts the cluster.
NVIDIA's GPU operator has one ClusterPolicy. Where it is not installed, not readable or without the field, devices are
named by their UUIDs, as every version did before CDI. A changed policy applies to shares that are bound from then on:
a bound share keeps its ConfigMaps. Decision 209.
"""

import re
from collections.abc import Iterable
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, identity_of, key_of
from bowline.framework.config import GpuSharingSettings

# From this version of the GPU operator on, CDI is the default of its runtime wherever CDI is enabled.
_CDI_IS_DEFAULT = (25, 10, 0)
_VERSION = re.compile(r"v([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(-[0-9A-Za-z.-]+)?")


class Detection:
    """The settings, completed by what the watches show. Its ``*_changed`` methods are event handlers."""

    def __init__(self, sharing: GpuSharingSettings) -> None:
        self._sharing = sharing
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


def transform_policy(policy: dict[str, Any]) -> Object:
    """Keep of a ClusterPolicy its identity, its version and its settings of CDI."""
    label = (policy["metadata"].get("labels") or {}).get(names.LABEL_VERSION)
    spec = policy.get("spec")
    cdi = spec.get("cdi") if isinstance(spec, dict) else None
    metadata = identity_of(policy) | ({"labels": {names.LABEL_VERSION: label}} if label else {})
    return {"metadata": metadata, "spec": {"cdi": cdi if isinstance(cdi, dict) else {}}}


def transform_fake_node(node: dict[str, Any]) -> Object:
    """Keep a node's identity."""
    return {"metadata": identity_of(node)}


def effective_policy(policies: Iterable[Object]) -> Object | None:
    """Return the first policy by name: NVIDIA's operator ignores all but one."""
    return min(policies, key=lambda entry: key_of(entry).name, default=None)


def cdi_of(policies: Iterable[Object]) -> bool:
    """Return whether the effective policy makes the runtime take devices by CDI, as KAI-Scheduler concludes it."""
    policy = effective_policy(policies)
    if policy is None or policy["spec"]["cdi"].get("enabled") is not True:
        return False
    version = (policy["metadata"].get("labels") or {}).get(names.LABEL_VERSION, "")
    return is_at_least(version, _CDI_IS_DEFAULT) or policy["spec"]["cdi"].get("default") is True


def is_at_least(version: str, least: tuple[int, int, int]) -> bool:
    """Return whether a semantic version with a leading ``v`` is ``least`` or later; False for any other text."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return False
    numbers = tuple(int(part or 0) for part in match.groups()[:3])
    # A pre-release precedes its release.
    return numbers > least or (numbers == least and match[4] is None)
