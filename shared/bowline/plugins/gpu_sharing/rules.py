"""What a pod and its request say of a share, and whether the request is valid. Pure."""

import re
from dataclasses import dataclass

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.field_error import format_value
from bowline.api.gpu_share import (
    ShareTarget,
    capabilities_map,
    configmap_prefix,
    direct_env_map,
    share_target,
    wants_share,
)
from bowline.api.meta import Object

# A group is a label's value and, on a pod of several devices, also the name part of a label's key.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's share, from the pod itself."""

    prefix: str
    target: ShareTarget

    @property
    def configmaps(self) -> tuple[str, str]:
        """The ConfigMaps by name: the one whose keys the container's environment refers to, and the complete one."""
        capabilities = capabilities_map(self.prefix, self.target)
        return capabilities, direct_env_map(capabilities)


def share_of(pod: Object) -> Share | None:
    """Return the pod's share; None if it was not mutated for one."""
    prefix, target = configmap_prefix(pod), share_target(pod)
    return Share(prefix, target) if prefix and target is not None else None


def is_prepared(pod: Object) -> bool:
    """Return whether the pod requests a share, and its containers refer to what only the bind of a share writes."""
    return wants_share(pod) and share_of(pod) is not None


def takes_whole_gpus(spec: BindRequestSpec, pod: Object | None) -> bool:
    """Return whether the pod gets whole devices, by its request or by its own limits."""
    if spec.received_gpu is not None and spec.received_gpu.count:
        return True
    pod_spec = (pod or {}).get("spec") or {}
    containers = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]
    return any(names.RESOURCE_GPU in ((c.get("resources") or {}).get("limits") or {}) for c in containers)


def request_error(spec: BindRequestSpec) -> str | None:
    """Return why the request is invalid, for a message; None if it is valid."""
    field = "spec.selectedFractionalGpuGroups" if spec.selected_fractional_gpu_groups else "spec.selectedGPUGroups"
    groups = list(spec.gpu_groups)
    if not groups:
        return f"{field}: [] must name one group for each shared device; have the scheduler fill it"
    if len(set(groups)) != len(groups):
        return f"{field}: {groups} must not name a group twice; each device has a group of its own"
    count = spec.received_gpu.count if spec.received_gpu is not None else None
    if count != len(groups):
        return (
            f"spec.receivedGPU.count: {format_value(count)} must be the number of {field}, {len(groups)}; "
            "have the scheduler name one group for each device"
        )
    modes = [mode for mode in spec.compute_modes.values() if mode != names.SM_SHARING]
    if modes:
        known = f"{names.TIME_SLICING} or {names.SM_SHARING}"
        return f"{field}: computeSharingMode {modes[0]!r} must be {known}; have the scheduler name one of them"
    wrong = [group for group in groups if not _LABEL_VALUE.fullmatch(group)]
    if wrong:
        return (
            f"{field}: {wrong[0]!r} must be the value of a label, at most 63 letters, digits, '-', "
            "'_' and '.' with a letter or digit at either end; have the scheduler choose another"
        )
    return None
