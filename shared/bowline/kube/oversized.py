"""Objects with so many values that decoding them would block the event loop: recognized before they are decoded.

An API server stores an object of up to 1.5 MB, which may be hundreds of thousands of tiny values: decoding that takes
60 MB and 50 ms. So of such an object in a list or a watch only the identity is read, which API servers write first,
or the metadata; a single one that is asked for is an error. Nothing that Bowline can act on has so many values.
Decision 231.
"""

import json
import re
from typing import Any

from bowline.api.meta import Object

# Decoding that many takes up to 15 ms and 15 MB.
MAX_VALUES = 50_000
# The shortest value with its separator, in bytes: shorter texts need no count.
_SHORTEST = 2
# As in replies of API servers that contain metadata only.
KIND = "PartialObjectMetadata"

_STRING = rb'"([^"\\]*)"'
# The order of the fields in a reply of a type that the API server has as a struct, as metadata alone is.
_IDENTITY = (
    rb'"metadata":\{"name":' + _STRING + rb'(?:,"generateName":"[^"\\]*")?(?:,"namespace":' + _STRING + rb")?"
    rb'(?:,"uid":' + _STRING + rb')?(?:,"resourceVersion":' + _STRING + rb')?(?:,"generation":\d+)?'
    rb'(?:,"creationTimestamp":' + _STRING + rb')?(?:,"deletionTimestamp":' + _STRING + rb")?"
)
_TYPE_META = rb'(?:"(?:kind|apiVersion)":"[^"\\]*",){0,2}'
_EVENT = re.compile(rb'\s*\{"type":"(\w+)","object":\{' + _TYPE_META)
_PAGE = re.compile(rb"\s*\{" + _TYPE_META + rb'"metadata":(\{[^{}]*\}),"items":\[\{' + _TYPE_META)
_METADATA = re.compile(_IDENTITY)
_FIELDS = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")


def has_too_many_values(text: bytes) -> bool:
    """Return whether a JSON text has more than ``MAX_VALUES`` values, without decoding it."""
    if len(text) < MAX_VALUES * _SHORTEST or text.count(b",") < MAX_VALUES // 2:
        return False
    # Strings may contain commas. A quote in a string follows a backslash, so these patterns are not in one.
    keys = text.count(b'":') - text.count(b'\\":')
    strings = text.count(b'","') - text.count(b'\\","')
    return keys + strings + text.count(b"{},") > MAX_VALUES


def is_reduced(item: Object) -> bool:
    """Return whether of an object only the metadata was read."""
    return item.get("kind") == KIND


def reduced_event(line: bytes) -> dict[str, Any] | None:
    """Return an event with the identity of its object only; None for an unknown form."""
    start = _EVENT.match(line)
    if start is None:
        return None
    identity = _identity_at(line, start.end())
    return {"type": start[1].decode(), "object": identity} if identity is not None else None


def reduced_page(body: bytes) -> dict[str, Any] | None:
    """Return a page of one object with the identity of that object only; None for an unknown form."""
    start = _PAGE.match(body)
    if start is None:
        return None
    identity = _identity_at(body, start.end())
    return {"metadata": json.loads(start[1]), "items": [identity]} if identity is not None else None


def _identity_at(text: bytes, position: int) -> dict[str, Any] | None:
    match = _METADATA.match(text, position)
    if match is None:
        return None
    values = zip(_FIELDS, match.groups(), strict=True)
    return {"kind": KIND, "metadata": {field: value.decode() for field, value in values if value is not None}}
