"""How NVIDIA's GPU operator gives devices to containers, and whether a share works with it. Pure.

The operator has one ClusterPolicy. Its mode decides what a share needs: the legacy runtime and CDI take the devices
of a share from the environment of its container, under a RuntimeClass that the operator creates. In NRI mode it
creates none, and only NVIDIA's GPU fractioning gives a share its device. Where the operator is not installed, not
readable or silent, nothing is concluded from it. Decisions 209 and 252.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, identity_of, key_of

# From this version of the GPU operator on, CDI is the default of its runtime wherever CDI is enabled.
_CDI_IS_DEFAULT = (25, 10, 0)
_VERSION = re.compile(r"v([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(-[0-9A-Za-z.-]+)?")
_CLASS_SETTING, _FRACTIONS_SETTING = "gpuSharing.runtimeClassName", "gpuSharing.nvFractions"


class OperatorMode(StrEnum):
    """How containers get devices. ``UNKNOWN``: no ClusterPolicy is known."""

    UNKNOWN = "unknown"
    LEGACY = "legacy"
    CDI = "cdi"
    NRI = "nri"


_MODES = {
    OperatorMode.UNKNOWN: "no ClusterPolicy of NVIDIA's GPU operator is known",
    OperatorMode.LEGACY: "NVIDIA's GPU operator is in the mode of the legacy runtime",
    OperatorMode.CDI: "NVIDIA's GPU operator is in CDI mode",
    OperatorMode.NRI: "NVIDIA's GPU operator is in NRI mode (ClusterPolicy spec.cdi.nriPluginEnabled)",
}


@dataclass(frozen=True, slots=True)
class GpuRuntime:
    """What is known of the cluster. ``runtime_classes``: the names of all RuntimeClasses; None if not known."""

    mode: OperatorMode = OperatorMode.UNKNOWN
    runtime_classes: frozenset[str] | None = None

    def lacks(self, runtime_class: str) -> bool:
        """Return whether it is known that the class does not exist."""
        return self.runtime_classes is not None and runtime_class not in self.runtime_classes


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
    is_nri, mode = runtime.mode is OperatorMode.NRI, _MODES[runtime.mode]
    is_absent = bool(runtime_class) and runtime.lacks(runtime_class)
    if is_nri and (is_absent or not runtime_class):
        if are_fractioned:
            return None
        lacks = f"RuntimeClass {runtime_class} does not exist" if is_absent else "there is no RuntimeClass"
        text = f"{_CLASS_SETTING}: {lacks} for GPU shares: {mode}, where a share's environment gives it no device"
        remedy = f"set {_FRACTIONS_SETTING}, or disable the operator's NRI plugin"
        return RuntimeProblem(text, remedy, denies=is_absent)
    if not is_absent:
        return None
    text = f"{_CLASS_SETTING}: RuntimeClass {runtime_class}, which a GPU share needs, does not exist: {mode}"
    creator = "install NVIDIA's GPU operator" if runtime.mode is OperatorMode.UNKNOWN else "wait for the operator"
    other = f'set {_CLASS_SETTING} to the class of the nodes\' runtime, or to "" if it is their default'
    return RuntimeProblem(text, f"{creator}, which creates it, or {other}", denies=True)


def transform_policy(policy: dict[str, Any]) -> Object:
    """Keep of a ClusterPolicy its identity, its version and its settings of CDI."""
    label = (policy["metadata"].get("labels") or {}).get(names.LABEL_VERSION)
    spec = policy.get("spec")
    cdi = spec.get("cdi") if isinstance(spec, dict) else None
    metadata = identity_of(policy) | ({"labels": {names.LABEL_VERSION: label}} if label else {})
    return {"metadata": metadata, "spec": {"cdi": cdi if isinstance(cdi, dict) else {}}}


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
        return OperatorMode.NRI
    return OperatorMode.CDI if cdi_of((policy,)) else OperatorMode.LEGACY


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
