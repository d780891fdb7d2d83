"""What a pod requests of GPUs, parsed from its raw JSON: the input of every rule.

The types of fields were checked by the chain (``bowline.framework.structure``), except those of the old pod of an
UPDATE, of which only the annotations are read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from bowline.api import names
from bowline.api.field_error import format_value
from bowline.api.gpu_share import share_target
from bowline.api.meta import Object
from bowline.api.quantity import as_stored, parse_quantity

_MAX_DIGITS = 20
_NOTHING: Mapping[str, "Amount"] = {}


@dataclass(frozen=True, slots=True)
class Amount:
    """An entry of a resource list. ``quantity`` is None if the written value cannot be parsed."""

    resource: str
    path: str
    raw_value: Any
    quantity: Decimal | None

    @property
    def is_requested(self) -> bool:
        """Whether anything is requested: 0 is no GPU, an unparsable quantity counts as a request."""
        return self.quantity != 0

    @property
    def text(self) -> str:
        """The quantity for messages: the same for 0.5, "0.5" and the form that the API server stores, 500m."""
        if self.quantity is None:
            return format_value(self.raw_value)
        if self.quantity.adjusted() < _MAX_DIGITS:
            return f"{self.quantity.normalize():f}"
        return f"{self.quantity:.3e}"  # in full, 1e2147483647 takes 2 GB


# Tuples, because each review builds them: the constructor of a frozen dataclass takes several times as long.
class Container(NamedTuple):
    """The GPU fields of a container or init container."""

    name: str
    path: str
    is_init: bool
    is_privileged: bool
    limits: Mapping[str, Amount]
    requests: Mapping[str, Amount]
    claims: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"container {format_value(self.name)}" if self.name else self.path

    @property
    def is_plain(self) -> bool:
        """Whether its resources name no GPU, as for nearly all containers."""
        return not self.limits and not self.requests

    @property
    def effective_requests(self) -> list[Amount]:
        """What it requests, each resource once: by its limit or, without one, by its request."""
        if self.is_plain:
            return []
        amounts = {amount.resource: amount for part in (self.requests, self.limits) for amount in _nonzero(part)}
        return [amounts[resource] for resource in sorted(amounts)]


class PodGpus(NamedTuple):
    """The GPU fields of a pod. Containers are in name lookup order: init containers first.

    ``share`` is the first annotation that requests a share of a GPU, also with an empty value; empty if there is
    none. ``target`` is the container that gets it: the named one, else the default one.
    ``spec`` is the pod's own, for rules about its other fields.
    """

    annotations: Mapping[str, str]
    share: str
    containers: tuple[Container, ...]
    target: Container | None
    pod_level: tuple[Amount, ...]
    spec: Mapping[str, Any]


def view_pod(pod: Object) -> PodGpus:
    """Parse a pod, or the ``metadata`` and ``spec`` of a pod template."""
    spec = pod["spec"]
    annotations = owned_annotations(pod)
    share = next(filter(annotations.__contains__, names.SHARE_ANNOTATIONS), "")
    containers = tuple(_containers(spec))
    pod_level = _pod_level(spec["resources"]) if spec.get("resources") else ()
    return PodGpus(annotations, share, containers, _target(pod, containers) if annotations else None, pod_level, spec)


def owned_annotations(pod: Object) -> dict[str, str]:
    """Return the annotations of an object that the rules use, in a fixed order; null is stored as an empty string."""
    metadata = pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict):
        return {}
    return {
        key: annotations[key] or ""
        for key in names.OWNED_ANNOTATIONS
        if key in annotations and isinstance(annotations[key] or "", str)
    }


def is_device(resource: str) -> bool:
    """Return whether the resource is whole GPUs or MIG slices."""
    return resource == names.RESOURCE_GPU or resource.startswith(names.RESOURCE_MIG_PREFIX)


def _target(pod: Object, containers: tuple[Container, ...]) -> Container | None:
    target = share_target(pod)
    if target is None:
        return None
    before = len(pod["spec"].get("initContainers") or ()) if target.field == "containers" else 0
    return containers[before + target.index]


def _pod_level(resources: Object) -> tuple[Amount, ...]:
    limits, requests = _amounts(resources, "limits", "spec"), _amounts(resources, "requests", "spec")
    return tuple([amount for amount in (*limits.values(), *requests.values()) if is_device(amount.resource)])


def _nonzero(amounts: Mapping[str, Amount]) -> list[Amount]:
    return [amount for amount in amounts.values() if amount.is_requested]


def _containers(spec: Object) -> Iterator[Container]:
    for field in ("initContainers", "containers"):
        is_init = field == "initContainers"
        for index, container in enumerate(spec.get(field) or ()):
            path, resources = f"spec.{field}[{index}]", container.get("resources")
            is_privileged = bool((container.get("securityContext") or {}).get("privileged"))
            limits = _amounts(resources, "limits", path) if resources else _NOTHING
            requests = _amounts(resources, "requests", path) if resources else _NOTHING
            claims = _claims(resources) if resources else ()
            yield Container(container.get("name") or "", path, is_init, is_privileged, limits, requests, claims)


def _amounts(resources: Object, part: str, path: str) -> Mapping[str, Amount]:
    """Return the GPU entries of ``limits`` or ``requests`` by resource, sorted by name."""
    entries = resources.get(part) or {}
    return {
        key: Amount(key, f"{path}.resources.{part}[{key}]", entries[key], _parse_quantity(entries[key]))
        for key in sorted(filter(_is_gpu, entries))
    }


def _claims(resources: Object) -> tuple[str, ...]:
    return tuple([claim["name"] for claim in resources.get("claims") or () if claim.get("name")])


def _is_gpu(resource: str) -> bool:
    return is_device(resource) or resource.startswith(names.RESOURCE_DEVICE_CLASS_PREFIX)


def _parse_quantity(raw_value: Any) -> Decimal | None:
    try:
        return as_stored(parse_quantity(raw_value))
    except ValueError:
        return None
