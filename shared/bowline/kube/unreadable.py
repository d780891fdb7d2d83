"""Objects that are not decoded: with too many values, or in a form that API servers store and our reader refuses.

An API server stores an object of up to 1.5 MB, which may be hundreds of thousands of tiny values: decoding that takes
60 MB and 50 ms. It also stores what orjson refuses, since it keeps some bytes as they are (``managedFields``, opaque
parameters of a ResourceClaim): more than 1,024 levels, lone surrogates, invalid UTF-8, infinite numbers. Anybody who
may write one object could stop whoever reads it with others. So of such an object in a list or a watch only the
metadata is read, or the identity, which API servers write first; a single one that is asked for is the error
``Unreadable``. Nothing that Bowline can act on is so. Decision 231.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from bowline.api.meta import METADATA_KIND, Object, ObjectID, ObjectRef, ResourceVersion
from bowline.kube.errors import NoJSON, Unreadable
from bowline.kube.resources import Resource

log = logging.getLogger(__name__)

# Decoding that many takes up to 15 ms and 15 MB. An upper bound is counted: commas and opening brackets.
MAX_VALUES = 60_000
# Objects that are remembered as reported.
_REPORTED = 4096

_STRING = rb'"([^"\\]*)"'
# The order of the fields in a reply of a type that the API server has as a struct, as metadata alone is.
_IDENTITY = (
    rb'\{"name":' + _STRING + rb'(?:,"generateName":"[^"\\]*")?(?:,"namespace":' + _STRING + rb")?"
    rb'(?:,"selfLink":"[^"\\]*")?,"uid":' + _STRING + rb',"resourceVersion":' + _STRING + rb'(?:,"generation":\d+)?'
    rb'(?:,"creationTimestamp":' + _STRING + rb')?(?:,"deletionTimestamp":' + _STRING + rb")?"
)
_TYPE_META = rb'(?:"(?:kind|apiVersion)":"[^"\\]*",){0,2}"metadata":'
_EVENT = re.compile(rb'\s*\{"type":"(\w+)","object":\{' + _TYPE_META)
_OBJECT = re.compile(rb"\s*\{" + _TYPE_META)
_PAGE = re.compile(rb"\s*\{" + _TYPE_META + rb'(\{[^{}]*\}),"items":\[\{' + _TYPE_META)
_METADATA = re.compile(_IDENTITY)
_FIELDS = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
# The last field of the metadata, and the only one whose content API servers do not decode. This is not in a string:
# there a quote follows a backslash.
_MANAGED_FIELDS = b',"managedFields":['


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object in a response or in a line of it, unless it has too many values; as ``decode_json``."""
    if has_too_many_values(body):
        raise Unreadable(f"it has more than {MAX_VALUES} values")
    return decode_json(body)


def decode_json(body: bytes) -> dict[str, Any]:
    """Return the object in a response.

    Raises Unreadable if the reader refuses it, and NoJSON if it is something else than a whole JSON object.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body[:16].lstrip()[:1] == b"{" and body[-16:].rstrip()[-1:] == b"}":
            raise Unreadable(f"its JSON is refused: {error.msg}") from error
        raise NoJSON("the answer is not JSON; is something between here and the API server?") from error
    if not isinstance(content, dict):
        raise NoJSON("the answer is no JSON object; is something between here and the API server?")
    return content


def has_too_many_values(text: bytes) -> bool:
    """Return whether a JSON text may have more than ``MAX_VALUES`` values, without decoding it."""
    return len(text) > MAX_VALUES and text.count(b",") + text.count(b"{") + text.count(b"[") > MAX_VALUES


def reduced_event(line: bytes) -> dict[str, Any] | None:
    """Return an event with the metadata of its object only; None for an unknown form."""
    start = _EVENT.match(line)
    reduced = _metadata_at(line, start.end()) if start is not None else None
    return {"type": start[1].decode(), "object": reduced} if start is not None and reduced is not None else None


def identity_event(line: bytes) -> dict[str, Any] | None:
    """Return an event with the identity of its object only, at a tenth of the time; None for an unknown form."""
    start = _EVENT.match(line)
    match = _METADATA.match(line, start.end()) if start is not None else None
    if start is None or match is None:
        return None
    return {"type": start[1].decode(), "object": {"kind": METADATA_KIND, "metadata": _identity(match)}}


def reduced_object(body: bytes) -> dict[str, Any] | None:
    """Return an object with its metadata only; None for an unknown form."""
    start = _OBJECT.match(body)
    return _metadata_at(body, start.end()) if start is not None else None


def reduced_page(body: bytes) -> dict[str, Any] | None:
    """Return a page of one object with the metadata of that object only; None for an unknown form."""
    start = _PAGE.match(body)
    reduced = _metadata_at(body, start.end()) if start is not None else None
    return {"metadata": orjson.loads(start[1]), "items": [reduced]} if start is not None and reduced else None


def _metadata_at(text: bytes, position: int) -> dict[str, Any] | None:
    """Return the metadata that begin there without managedFields; the identity alone if they cannot be decoded."""
    match = _METADATA.match(text, position)
    if match is None:
        return None
    metadata: dict[str, Any] = _identity(match)
    end = text.find(_MANAGED_FIELDS, match.end())
    if end >= 0:
        with suppress(Unreadable, NoJSON):  # the first one belongs to something behind the metadata
            metadata = parse_json(text[position:end] + b"}")
    return {"kind": METADATA_KIND, "metadata": metadata}


def _identity(match: re.Match[bytes]) -> dict[str, Any]:
    values = zip(_FIELDS, match.groups(), strict=True)
    return {field: value.decode() for field, value in values if value is not None}


class UnreadableObjects:
    """Reports objects that were not decoded: every time to ``count``, once for a UID in log and to followers."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._reasons: OrderedDict[ObjectID, tuple[ObjectRef, str]] = OrderedDict()
        self._followers: list[Callable[[ObjectRef, str], None]] = []

    def follow(self, report: Callable[[ObjectRef, str], None]) -> None:
        """Call ``report`` with each object and the reason, from now on and for what was reported so far."""
        self._followers.append(report)
        for ref, why in self._reasons.values():
            report(ref, why)

    def add(self, resource: Resource, item: Object, why: str) -> None:
        """Report an object of which only the metadata, or its key alone, was read. ``why``: what is wrong with it."""
        self._count(resource.plural)
        ref = replace(resource.ref(item), resource_version=ResourceVersion(""))
        reported = self._reasons.get(ref.id)
        if reported is not None and (ref.uid == reported[0].uid or not ref.uid):
            return
        self._reasons[ref.id] = ref, why
        if len(self._reasons) > _REPORTED:
            self._reasons.popitem(last=False)
        log.warning(
            "an object is not read; repair or delete it",
            extra={"resource": str(resource), "object": str(ref.key), "uid": ref.uid, "why": why},
        )
        for report in self._followers:
            report(ref, why)
