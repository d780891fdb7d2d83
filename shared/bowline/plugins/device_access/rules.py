"""Which containers have a GPU of their own, and which values of NVIDIA_VISIBLE_DEVICES each may set. Pure.

The container runtime exposes the devices that the variable NVIDIA_VISIBLE_DEVICES names, whether the image, the user
or the device plugin has set it. A container without a GPU therefore gets ``void`` as an entry of its own environment:
such entries take precedence over the image and ``envFrom``. For the same reason no other value may be set by hand,
also beside a GPU: it would take precedence over the device plugin's.

Exceptions: the container of a share takes its value from the share's own ConfigMap, and a container with a DRA claim
keeps its environment, because the pod does not show whether the claimed device is a GPU.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.gpu_share import (
    capabilities_map,
    configmap_prefix,
    fractioned_containers,
    is_generated,
    share_target,
    wants_share,
)
from bowline.api.meta import Object
from bowline.api.quantity import parse_quantity
from bowline.api.rule import DenialCause, Rule, Severity

VALUE: Final = Rule(
    "device_access/value",
    "plugin device_access: an entry `NVIDIA_VISIBLE_DEVICES` is not `void` or `none`",
    cause=DenialCause.FORBIDDEN,
)
VALUE_FROM: Final = Rule(
    "device_access/value-from",
    "plugin device_access: an entry `NVIDIA_VISIBLE_DEVICES` has a `valueFrom`",
    cause=DenialCause.FORBIDDEN,
)
CONFIGMAP_PREFIX: Final = Rule(
    "device_access/configmap-prefix",
    "plugin device_access: a share's `runai/shared-gpu-configmap` was chosen by its author, not generated",
    cause=DenialCause.FORBIDDEN,
)
ENV_FROM: Final = Rule(
    "device_access/env-from",
    "plugin device_access: a container with a GPU has an `envFrom` source whose prefix does not rule out "
    "`NVIDIA_VISIBLE_DEVICES`",
    severity=Severity.WARNS,
)
UNPREPARED: Final = Rule(
    "device_access/unprepared",
    "plugin device_access: a container without a GPU reaches the last hook without `void`: the mutating "
    "webhook was unavailable",
    cause=DenialCause.REQUIRED,
)

RULES: Final = (
    VALUE,
    VALUE_FROM,
    CONFIGMAP_PREFIX,
    ENV_FROM,
    UNPREPARED,
)


VOID = "void"
HARMLESS = (VOID, "none")

Field = Literal["initContainers", "containers", "ephemeralContainers"]


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """A container and its position. ``gpu``: it has its own GPU. ``share_map``: the ConfigMap of its devices."""

    field: Field
    index: int
    container: Object
    gpu: bool
    share_map: str = ""

    @property
    def path(self) -> str:
        return f"spec.{self.field}[{self.index}]"

    @property
    def entries(self) -> list[tuple[int, Object]]:
        """The entries that set the variable, with their indexes in ``env``; the last one takes effect."""
        env = self.container.get("env") or ()
        return [(index, entry) for index, entry in enumerate(env) if entry.get("name") == names.VISIBLE_DEVICES]

    def takes(self, reference: Mapping[str, Any]) -> bool:
        """Return whether the reference is the one from which a share's container takes its devices."""
        source = reference.get("configMapKeyRef") or {}
        key_reference = (source.get("name"), source.get("key"))
        return bool(self.share_map) and key_reference == (self.share_map, names.VISIBLE_DEVICES)


def containers_of(
    pod: Object, gpu_resources: Collection[str], *, are_fractioned: bool = False
) -> Iterator[ContainerRef]:
    """Yield the init and regular containers of a pod that is being created.

    ``are_fractioned``: whether NVIDIA's GPU fractioning gives devices to each container that its annotations name.
    """
    fractioned = fractioned_containers(pod) if are_fractioned else frozenset()
    target = share_target(pod) if wants_share(pod) else None
    fields: tuple[Field, ...] = ("initContainers", "containers")
    for field in fields:
        for index, container in enumerate(pod["spec"].get(field) or ()):
            if target is not None and (target.field, target.index) == (field, index):
                capabilities = capabilities_map(configmap_prefix(pod), target)
                yield ContainerRef(field, index, container, gpu=True, share_map=capabilities)
            else:
                has_gpu = container.get("name") in fractioned or _has_gpu(container, gpu_resources)
                yield ContainerRef(field, index, container, has_gpu)


def new_ephemeral_containers(pod: Object, old: Object) -> Iterator[ContainerRef]:
    """Yield the ephemeral containers that are being added. They have no GPU, because they cannot request one."""
    existing_names = {entry.get("name") for entry in (old.get("spec") or {}).get("ephemeralContainers") or ()}
    for index, container in enumerate(pod["spec"].get("ephemeralContainers") or ()):
        if container.get("name") not in existing_names:
            yield ContainerRef("ephemeralContainers", index, container, gpu=False)


def without_devices(ref: ContainerRef) -> list[Any] | None:
    """Return the environment in which the container sees no GPU; None if it needs no change.

    A value chosen by the user is kept for ``container_errors`` to deny: an error is better than a silent replacement.
    """
    if ref.gpu:
        return None
    entries = ref.entries
    # Some images take an empty value as all devices, others as none.
    empty = {index for index, entry in entries if _is_empty(entry)}
    if entries and not empty:
        return None
    other_entries = [entry for index, entry in enumerate(ref.container.get("env") or ()) if index not in empty]
    return (
        other_entries
        if len(empty) < len(entries)
        else [*other_entries, {"name": names.VISIBLE_DEVICES, "value": VOID}]
    )


def prefix_errors(pod: Object) -> Iterator[FieldError]:
    """Yield an error if the author of a share chose the name of the ConfigMaps that list its devices."""
    prefix = configmap_prefix(pod) if wants_share(pod) else ""
    if prefix and not is_generated(prefix):
        message = "must not be chosen where device_access is on; remove the annotation, and a name is generated"
        path = annotation_path(names.SHARED_GPU_CONFIGMAP)
        yield FieldError(CONFIGMAP_PREFIX, path, prefix, message)


def container_errors(ref: ContainerRef) -> Iterator[FieldError]:
    """Yield errors for forbidden values, and warnings for ``envFrom`` sources whose content is not checked."""
    for index, entry in ref.entries:
        path = f"{ref.path}.env[{index}]"
        if _is_empty(entry) and not ref.gpu:
            continue
        if entry.get("valueFrom"):
            if not ref.takes(entry["valueFrom"]):
                message = f'must be "void" or "none", not a reference: {_REMEDY[ref.gpu]}'
                yield FieldError(VALUE_FROM, f"{path}.valueFrom", entry["valueFrom"], message)
        elif entry.get("value") not in HARMLESS:
            message = f'must be "void" or "none": {_REMEDY[ref.gpu]}'
            yield FieldError(VALUE, f"{path}.value", entry.get("value"), message)
    if ref.gpu and not ref.entries:
        yield from _env_from_warnings(ref)


def hiding_errors(ref: ContainerRef) -> Iterator[FieldError]:
    """Yield an error for a container without a GPU that has no entry which hides the devices."""
    if ref.gpu or (ref.entries and not any(_is_empty(entry) for _, entry in ref.entries)):
        return
    message = (
        f"lacks {names.VISIBLE_DEVICES}=void, which the mutating webhook adds to a container without a GPU: it was "
        "unavailable or something changed the pod after it; try again, or add it yourself"
    )
    yield FieldError(UNPREPARED, f"{ref.path}.env", None, message)


_REMEDY = {
    True: f"the GPU that the container asks for sets {names.VISIBLE_DEVICES}; remove the entry",
    False: f"the container asks for no GPU; ask for one in its resources, or remove {names.VISIBLE_DEVICES}",
}


def _env_from_warnings(ref: ContainerRef) -> Iterator[FieldError]:
    for index, source in enumerate(ref.container.get("envFrom") or ()):
        prefix = source.get("prefix") or ""
        if names.VISIBLE_DEVICES.startswith(prefix):
            message = (
                f"would win over the container's own GPU if it holds {names.VISIBLE_DEVICES.removeprefix(prefix)}; "
                "its content is not checked"
            )
            yield FieldError(ENV_FROM, f"{ref.path}.envFrom[{index}]", None, message)


def _is_empty(entry: Object) -> bool:
    return not entry.get("value") and not entry.get("valueFrom")


def _has_gpu(container: Object, gpu_resources: Collection[str]) -> bool:
    resources = container.get("resources") or {}
    if resources.get("claims"):
        return True
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(
        _counts_as_gpu(resource, gpu_resources) and _is_some(quantity) for resource, quantity in amounts.items()
    )


def _counts_as_gpu(resource: str, gpu_resources: Collection[str]) -> bool:
    prefixes = (names.RESOURCE_MIG_PREFIX, names.RESOURCE_DEVICE_CLASS_PREFIX)
    return resource == names.RESOURCE_GPU or resource in gpu_resources or resource.startswith(prefixes)


def _is_some(quantity: Any) -> bool:
    try:
        return parse_quantity(quantity) > 0
    except ValueError:
        return True  # denied by another check; the intent was a GPU
