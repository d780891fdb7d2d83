"""Which containers have a GPU of their own, and how one without a GPU is kept from seeing any. Pure.

The container runtime exposes the devices that the variable NVIDIA_VISIBLE_DEVICES names, whether the image, the user
or the device plugin has set it. A container without a GPU therefore gets ``void`` as an entry of its own environment:
such entries take precedence over the image and ``envFrom``. Two plugins do this: ``gpu_sharing`` in the pods of
shares, ``device_access`` in all pods in scope.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bowline.api import names
from bowline.api.gpu_share import (
    capabilities_map,
    configmap_prefix,
    share_target,
    wants_share,
)
from bowline.api.meta import Object
from bowline.api.quantity import parse_quantity
from bowline.framework.interface.mutable import MutablePod

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

    @property
    def sees_image(self) -> bool:
        """Whether the container has no GPU, and no entry that keeps it from those that its image names."""
        return not self.gpu and (not self.entries or any(is_empty(entry) for _, entry in self.entries))

    def takes(self, reference: Mapping[str, Any]) -> bool:
        """Return whether the reference is the one from which a share's container takes its devices."""
        source = reference.get("configMapKeyRef") or {}
        key_reference = (source.get("name"), source.get("key"))
        return bool(self.share_map) and key_reference == (self.share_map, names.VISIBLE_DEVICES)


def containers_of(
    pod: Object, gpu_resources: Collection[str], *, claims_count: bool = True
) -> Iterator[ContainerRef]:
    """Yield the init and regular containers of a pod that is being created.

    ``claims_count``: whether a DRA claim is taken for a GPU, because the pod does not show which device it is.
    """
    target = share_target(pod) if wants_share(pod) else None
    fields: tuple[Field, ...] = ("initContainers", "containers")
    for field in fields:
        for index, container in enumerate(pod["spec"].get(field) or ()):
            if target is not None and (target.field, target.index) == (field, index):
                capabilities = capabilities_map(configmap_prefix(pod), target)
                yield ContainerRef(field, index, container, gpu=True, share_map=capabilities)
            else:
                yield ContainerRef(field, index, container, _has_gpu(container, gpu_resources, claims_count))


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
    empty = {index for index, entry in entries if is_empty(entry)}
    if entries and not empty:
        return None
    other_entries = [entry for index, entry in enumerate(ref.container.get("env") or ()) if index not in empty]
    return (
        other_entries
        if len(empty) < len(entries)
        else [*other_entries, {"name": names.VISIBLE_DEVICES, "value": VOID}]
    )


def hide_devices(pod: MutablePod, refs: Iterable[ContainerRef]) -> None:
    """Let each container without a GPU see none."""
    for ref in refs:
        env = without_devices(ref)
        if env is not None and not ref.entries:
            # Append: replacing the list would repeat every user-written entry in the patch.
            pod.append(env[-1], "spec", ref.field, ref.index, "env")
        elif env is not None:
            pod.set(env, "spec", ref.field, ref.index, "env")


def is_empty(entry: Object) -> bool:
    """Return whether an entry of the environment has no value, which images take for all devices or for none."""
    return not entry.get("value") and not entry.get("valueFrom")


def _has_gpu(container: Object, gpu_resources: Collection[str], claims_count: bool) -> bool:
    resources = container.get("resources") or {}
    if claims_count and resources.get("claims"):
        return True
    prefixes = (names.RESOURCE_MIG_PREFIX, *((names.RESOURCE_DEVICE_CLASS_PREFIX,) if claims_count else ()))
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(
        (resource == names.RESOURCE_GPU or resource in gpu_resources or resource.startswith(prefixes))
        and _is_some(quantity)
        for resource, quantity in amounts.items()
    )


def _is_some(quantity: Any) -> bool:
    try:
        return parse_quantity(quantity) > 0
    except ValueError:
        return True  # denied by another check; the intent was a GPU
