"""Which containers have a GPU of their own, and what each may say of the devices it sees. Pure.

The container runtime shows a container the devices that its variable NVIDIA_VISIBLE_DEVICES names, whoever wrote it:
the image, the user, the device plugin. So a container without a GPU is told ``void`` in the one way that nothing
overrides, an entry of its own environment: those win over the image's and over ``envFrom``. For the same reason
nobody may write another value by hand, also beside a GPU: it would win over the device plugin's.

The container of a share is the exception: its value comes from the share's own ConfigMap. One that uses a DRA claim
is never voided, because the pod does not say whether the device is a GPU.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.api import names
from shared.api.field_error import FieldError, annotation_path
from shared.api.gpu_share import capabilities_map, configmap_prefix, is_generated, share_target, wants_share
from shared.api.meta import Object
from shared.api.quantity import parse_quantity

VOID = "void"
HARMLESS = (VOID, "none")

Field = Literal["initContainers", "containers", "ephemeralContainers"]


@dataclass(frozen=True, slots=True)
class Place:
    """A container and where it stands. ``gpu``: it has one of its own. ``share_map``: a ConfigMap that says which."""

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
        """The entries that set the variable, and where they stand; the last one counts."""
        env = self.container.get("env") or ()
        return [(index, entry) for index, entry in enumerate(env) if entry.get("name") == names.VISIBLE_DEVICES]

    def takes(self, reference: Mapping[str, Any]) -> bool:
        """Return whether the reference is the one by which a share's container is told its device."""
        told = reference.get("configMapKeyRef") or {}
        found = (told.get("name"), told.get("key"))
        return bool(self.share_map) and found == (self.share_map, names.VISIBLE_DEVICES)


def places(pod: Object, gpu_resources: Collection[str]) -> Iterator[Place]:
    """Yield the containers of a pod that is being created."""
    target = share_target(pod) if wants_share(pod) else None
    fields: tuple[Field, ...] = ("initContainers", "containers")
    for field in fields:
        for index, container in enumerate(pod["spec"].get(field) or ()):
            if target is not None and (target.field, target.index) == (field, index):
                capabilities = capabilities_map(configmap_prefix(pod), target)
                yield Place(field, index, container, gpu=True, share_map=capabilities)
            else:
                yield Place(field, index, container, _has_gpu(container, gpu_resources))


def new_ephemeral_places(pod: Object, old: Object) -> Iterator[Place]:
    """Yield the ephemeral containers that are being added: they never have a GPU, for they cannot ask for one."""
    known = {one.get("name") for one in (old.get("spec") or {}).get("ephemeralContainers") or ()}
    for index, container in enumerate(pod["spec"].get("ephemeralContainers") or ()):
        if container.get("name") not in known:
            yield Place("ephemeralContainers", index, container, gpu=False)


def voided(place: Place) -> list[Any] | None:
    """Return the environment in which the container sees no GPU; None if nothing is to be changed.

    A value that the user has chosen is left for ``faults`` to refuse: it is better told than taken away.
    """
    if place.gpu:
        return None
    entries = place.entries
    # An empty value means all devices to some images and none to others.
    empty = {index for index, entry in entries if _is_empty(entry)}
    if entries and not empty:
        return None
    kept = [entry for index, entry in enumerate(place.container.get("env") or ()) if index not in empty]
    return kept if len(empty) < len(entries) else [*kept, {"name": names.VISIBLE_DEVICES, "value": VOID}]


def prefix_faults(pod: Object) -> Iterator[FieldError]:
    """Yield the fault of a share whose author has chosen the ConfigMaps that name its devices."""
    prefix = configmap_prefix(pod) if wants_share(pod) else ""
    if prefix and not is_generated(prefix):
        message = "must not be chosen where device_access is on; leave the annotation out and a name is made"
        path = annotation_path(names.SHARED_GPU_CONFIGMAP)
        yield FieldError("device_access/configmap-prefix", path, prefix, message)


def faults(place: Place) -> Iterator[FieldError]:
    """Yield what a container says of its devices and may not, and what it may say without anybody knowing."""
    for index, entry in place.entries:
        path = f"{place.path}.env[{index}]"
        if _is_empty(entry) and not place.gpu:
            continue
        if entry.get("valueFrom"):
            if not place.takes(entry["valueFrom"]):
                message = f'must be "void" or "none", not a reference: {_REMEDY[place.gpu]}'
                yield FieldError("device_access/value-from", f"{path}.valueFrom", entry["valueFrom"], message)
        elif entry.get("value") not in HARMLESS:
            message = f'must be "void" or "none": {_REMEDY[place.gpu]}'
            yield FieldError("device_access/value", f"{path}.value", entry.get("value"), message)
    if place.gpu and not place.entries:
        yield from _env_from_warnings(place)


def unprepared(place: Place) -> Iterator[FieldError]:
    """Yield the fault of a container without a GPU that would start without being told so."""
    if place.gpu or (place.entries and not any(_is_empty(entry) for _, entry in place.entries)):
        return
    message = (
        f"lacks {names.VISIBLE_DEVICES}=void, which the mutating webhook adds to a container without a GPU: it was "
        "away or something changed the pod after it; try again, or add it yourself"
    )
    yield FieldError("device_access/unprepared", f"{place.path}.env", None, message)


_REMEDY = {
    True: f"the GPU that the container asks for sets {names.VISIBLE_DEVICES}; remove the entry",
    False: f"the container asks for no GPU; ask for one in its resources, or remove {names.VISIBLE_DEVICES}",
}


def _env_from_warnings(place: Place) -> Iterator[FieldError]:
    for index, source in enumerate(place.container.get("envFrom") or ()):
        prefix = source.get("prefix") or ""
        if names.VISIBLE_DEVICES.startswith(prefix):
            message = (
                f"would win over the container's own GPU if it holds {names.VISIBLE_DEVICES.removeprefix(prefix)}; "
                "nobody looks into it"
            )
            yield FieldError(
                "device_access/env-from", f"{place.path}.envFrom[{index}]", None, message, is_warning=True
            )


def _is_empty(entry: Object) -> bool:
    return not entry.get("value") and not entry.get("valueFrom")


def _has_gpu(container: Object, gpu_resources: Collection[str]) -> bool:
    resources = container.get("resources") or {}
    if resources.get("claims"):
        return True
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(_is_gpu(resource, gpu_resources) and _is_some(quantity) for resource, quantity in asked.items())


def _is_gpu(resource: str, gpu_resources: Collection[str]) -> bool:
    prefixes = (names.RESOURCE_MIG_PREFIX, names.RESOURCE_DEVICE_CLASS_PREFIX)
    return resource == names.RESOURCE_GPU or resource in gpu_resources or resource.startswith(prefixes)


def _is_some(quantity: Any) -> bool:
    try:
        return parse_quantity(quantity) > 0
    except ValueError:
        return True  # refused elsewhere; it was meant to be a GPU
