"""How NVIDIA's GPU operator gives devices to containers, and whether a share works with it. Pure.

The operator has one ClusterPolicy. Its mode decides how a container gets the devices of its share: the legacy runtime
and CDI take them from its environment, under a RuntimeClass that the operator creates. In NRI mode it creates none,
and the plugin of its container toolkit takes them from an annotation of the pod. On a node with agents of NVIDIA's
GPU fractioning those give it the devices. Where the operator is not installed, not readable or silent, nothing is
concluded from it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bowline.api import names
from bowline.api.meta import Object, identity_of, key_of

# From this version of the GPU operator on, CDI is the default of its runtime wherever CDI is enabled.
_CDI_IS_DEFAULT = (25, 10, 0)
# From this version of the container toolkit on, its NRI plugin gives devices to pods of every namespace.
_NRI_FOR_ALL = (1, 20, 0)
_VERSION = re.compile(r"v([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(-[0-9A-Za-z.-]+)?")
_CLASS_SETTING, _FRACTIONS_SETTING = "gpuSharing.runtimeClassName", "gpuSharing.nvFractions"


class OperatorMode(StrEnum):
    """How containers get devices.

    ``UNKNOWN``: no ClusterPolicy is known. ``OLD_NRI``: only the operator's own pods get any.
    """

    UNKNOWN = "unknown"
    LEGACY = "legacy"
    CDI = "cdi"
    NRI = "nri"
    OLD_NRI = "nri-before-1.20"

    @property
    def uses_cdi(self) -> bool:
        """Whether a share's devices are named in the form of CDI; by their UUIDs otherwise."""
        return self in (OperatorMode.CDI, OperatorMode.NRI, OperatorMode.OLD_NRI)


_MODES = {
    OperatorMode.UNKNOWN: "no ClusterPolicy of NVIDIA's GPU operator is known",
    OperatorMode.LEGACY: "NVIDIA's GPU operator is in the mode of the legacy runtime",
    OperatorMode.CDI: "NVIDIA's GPU operator is in CDI mode",
    OperatorMode.OLD_NRI: "NVIDIA's GPU operator is in NRI mode (ClusterPolicy spec.cdi.nriPluginEnabled) with a "
    "container toolkit before 1.20 (spec.toolkit.version)",
}


@dataclass(frozen=True, slots=True)
class GpuRuntime:
    """What is known of the cluster. ``runtime_classes``: the names of all RuntimeClasses; None if not known."""

    mode: OperatorMode = OperatorMode.UNKNOWN
    runtime_classes: frozenset[str] | None = None

    def lacks(self, runtime_class: str) -> bool:
        """Return whether it is known that the class does not exist."""
        return self.runtime_classes is not None and runtime_class not in self.runtime_classes

    def gives_by_class(self, runtime_class: str) -> bool:
        """Return whether a share gets its devices under the class, as far as is known."""
        return bool(runtime_class) and self.mode is not OperatorMode.NRI and not self.lacks(runtime_class)


UNKNOWN: Final = GpuRuntime()


@dataclass(frozen=True, slots=True)
class RuntimeProblem:
    """Why shares do not work. ``denies``: no share can be created; else they may see no GPU."""

    text: str
    remedy: str
    denies: bool

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


def runtime_problem(runtime: GpuRuntime, runtime_class: str, *, are_fractioned: bool) -> RuntimeProblem | None:
    """Return why shares do not work; None if nothing speaks against it.

    ``runtime_class``: the configured one, empty for none. ``are_fractioned``: whether GPU fractioning is enabled.
    """
    if runtime.mode is OperatorMode.NRI:
        return None
    is_old_nri, mode = runtime.mode is OperatorMode.OLD_NRI, _MODES[runtime.mode]
    is_absent = bool(runtime_class) and runtime.lacks(runtime_class)
    if is_old_nri and (is_absent or not runtime_class):
        if are_fractioned:
            return None
        lacks = f"RuntimeClass {runtime_class} does not exist" if is_absent else "there is no RuntimeClass"
        text = f"{_CLASS_SETTING}: {lacks} for GPU shares: {mode}, which gives devices to the operator's pods only"
        remedy = f"upgrade the toolkit to 1.20 or newer, set {_FRACTIONS_SETTING}, or disable its NRI plugin"
        return RuntimeProblem(text, remedy, denies=is_absent)
    if not is_absent:
        return None
    text = f"{_CLASS_SETTING}: RuntimeClass {runtime_class}, which a GPU share needs, does not exist: {mode}"
    creator = "install NVIDIA's GPU operator" if runtime.mode is OperatorMode.UNKNOWN else "wait for the operator"
    other = f'set {_CLASS_SETTING} to the class of the nodes\' runtime, or to "" if it is their default'
    return RuntimeProblem(text, f"{creator}, which creates it, or {other}", denies=True)


def transform_policy(policy: dict[str, Any]) -> Object:
    """Keep of a ClusterPolicy its identity, its version and its settings of CDI and of the container toolkit."""
    label = (policy["metadata"].get("labels") or {}).get(names.LABEL_VERSION)
    spec = policy.get("spec")
    parts = {part: spec.get(part) if isinstance(spec, dict) else None for part in ("cdi", "toolkit")}
    metadata = identity_of(policy) | ({"labels": {names.LABEL_VERSION: label}} if label else {})
    return {
        "metadata": metadata,
        "spec": {part: value if isinstance(value, dict) else {} for part, value in parts.items()},
    }


def effective_policy(policies: Iterable[Object]) -> Object | None:
    """Return the first policy by name: NVIDIA's operator ignores all but one."""
    return min(policies, key=lambda entry: key_of(entry).name, default=None)


def operator_mode(policies: Iterable[Object]) -> OperatorMode:
    """Return the mode by the effective policy. NRI needs CDI: the operator denies the one without the other."""
    policy = effective_policy(policies)
    if policy is None:
        return OperatorMode.UNKNOWN
    cdi = policy["spec"]["cdi"]
    if cdi.get("enabled") is True and cdi.get("nriPluginEnabled") is True:
        toolkit = str(policy["spec"]["toolkit"].get("version") or "").partition("-")[0]
        is_old = _VERSION.fullmatch(toolkit) is not None and not is_at_least(toolkit, _NRI_FOR_ALL)
        return OperatorMode.OLD_NRI if is_old else OperatorMode.NRI
    # As KAI-Scheduler concludes it.
    version = (policy["metadata"].get("labels") or {}).get(names.LABEL_VERSION, "")
    is_default = is_at_least(version, _CDI_IS_DEFAULT) or cdi.get("default") is True
    return OperatorMode.CDI if cdi.get("enabled") is True and is_default else OperatorMode.LEGACY


def is_fractioned(setting: object, node: Object | None) -> bool:
    """Return whether agents of GPU fractioning give the node's shares their devices. ``setting``:
    ``gpuSharing.nvFractions``.
    """
    return setting is True or (setting == "Auto" and node is not None and _has_fractioning(node))


def _has_fractioning(node: Object) -> bool:
    """Return whether the node reports that its agents of GPU fractioning work."""
    return any(
        condition.get("type") == names.NODE_FRACTIONING_READY and condition.get("status") == "True"
        for condition in (node.get("status") or {}).get("conditions") or ()
    )


def is_at_least(version: str, least: tuple[int, int, int]) -> bool:
    """Return whether a semantic version with a leading ``v`` is ``least`` or later; False for any other text."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return False
    numbers = tuple(int(part or 0) for part in match.groups()[:3])
    # A pre-release precedes its release.
    return numbers > least or (numbers == least and match[4] is None)
