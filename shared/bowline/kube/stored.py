"""Whether an object is stored as it was written. Pure.

Every admission webhook and policy of the cluster may change a write before it is stored, and an API server drops
fields that it does not serve: the call succeeds. So whoever relies on the content of a write compares it with the
reply, which is in memory already. What others add is no difference, except in ``status``, which lists completely, and
in the ``data`` of a ConfigMap, by which a container gets its environment.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bowline.api.field_error import format_value
from bowline.api.meta import ObjectKey
from bowline.api.quantity import parse_quantity
from bowline.kube.errors import NotStoredError
from bowline.kube.resources import Resource

_PLAIN = re.compile(r"[A-Za-z]+")
# A write's precondition.
_VERSION = "metadata.resourceVersion"
# The fields whose values are quantities, which the API server rewrites: 1000m becomes 1.
_QUANTITIES = ("requests", "limits", "capacity", "consumedCapacity")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that is stored otherwise than it was written."""

    path: str
    written: Any
    stored: Any

    def __str__(self) -> str:
        return f"{self.path}: {format_value(self.stored)} is stored instead of {format_value(self.written)}"


def require_stored(resource: Resource, key: ObjectKey, written: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
    """Raise NotStoredError for the first field of ``written`` that the object in the reply does not have."""
    difference = next(differences(written, reply), None)
    if difference is not None:
        raise not_stored(resource, key, difference, reply)


def not_stored(
    resource: Resource, key: ObjectKey, difference: Difference, reply: Mapping[str, Any]
) -> NotStoredError:
    """Return the error of a field that the object in the reply has otherwise."""
    return NotStoredError(
        f"{resource.kind} {key}: {difference}: an admission webhook or policy changes this write, or the API server "
        "does not serve the field; exempt Bowline's writes from it",
        reply,
    )


def is_stored(written: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Return whether the object has every field of ``written``."""
    return next(differences(written, stored), None) is None


def differences(written: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the fields that are stored otherwise.

    ``written``: the written object, the part of it that matters, or a merge patch: null means that the field is
    absent. An empty value is the same as none. The resourceVersion is a precondition and not compared.
    """
    return _of_mapping(written, stored, "")


def _of_mapping(written: Mapping[str, Any], stored: Any, path: str) -> Iterator[Difference]:
    fields = stored if isinstance(stored, Mapping) else {}
    is_of_quantities = path.rpartition(".")[2] in _QUANTITIES
    if path == "data":
        written = {**dict.fromkeys(fields), **written}
    for key, value in written.items():
        field_path = f"{path}.{key}" if path and _PLAIN.fullmatch(key) else f"{path}[{key}]" if path else key
        if field_path != _VERSION and not (is_of_quantities and _is_same_quantity(value, fields.get(key))):
            yield from _of_value(value, fields.get(key), field_path)


def _of_value(written: Any, stored: Any, path: str) -> Iterator[Difference]:
    if isinstance(written, Mapping):
        yield from _of_mapping(written, stored, path)
    elif isinstance(written, list | tuple):
        yield from _of_list(written, stored if isinstance(stored, list) else [], path)
    elif written != stored and (written or stored):
        yield Difference(path, written, stored)


def _of_list(written: Sequence[Any], stored: list[Any], path: str) -> Iterator[Difference]:
    is_complete = path.startswith("status")
    if is_complete and len(written) != len(stored):
        yield Difference(path, list(written), stored)
        return
    for index, value in enumerate(written):
        # Where it was written first: a tenant decides how long the finalizers of a claim are.
        same_place = stored[index : index + 1]
        candidates = same_place if is_complete else chain(same_place, stored)
        if not any(next(_of_value(value, entry, path), None) is None for entry in candidates):
            yield Difference(f"{path}[{index}]", value, stored)


def _is_same_quantity(written: Any, stored: Any) -> bool:
    with suppress(ValueError):
        return stored is not None and parse_quantity(written) == parse_quantity(stored)
    return False
