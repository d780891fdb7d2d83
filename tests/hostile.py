"""JSON that API servers store as it is, and that the JSON reader of Bowline refuses; and how to store it."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import orjson

from bowline.api.meta import ObjectKey
from bowline.kube.calls import Request
from bowline.kube.client import KubeClient
from bowline.kube.errors import from_response
from bowline.kube.resources import Resource
from bowline.kube.unreadable import MAX_VALUES

# orjson decodes 1,024 levels, API servers 10,000.
_LEVELS = 1_100
# In place of a value, in an object that is encoded.
_MARK = "the hostile value"

# As a set of fields, which API servers encode again: a lone surrogate is none any more then.
MANAGED_FIELDS: Mapping[str, bytes] = {
    "levels": b'{"f:a":' * _LEVELS + b"{}" + b"}" * _LEVELS,
    "invalid UTF-8": b'{"f:metadata":{"f:labels":{"f:\xff":{}}}}',
    "too many values": b"{" + b",".join(b'"f:%d":{}' % number for number in range(MAX_VALUES)) + b"}",
}
# Opaque parameters of a ResourceClaim, which are kept byte by byte. API servers refuse an infinite number.
PARAMETERS: Mapping[str, bytes] = {
    "levels": b"[" * _LEVELS + b"]" * _LEVELS,
    "a lone surrogate": b'"\\ud800"',
    "invalid UTF-8": b'"\xff"',
    "the end of an object": b'"x\\ud800","managedFields":[1,{"name":"a"}]',
}


def with_managed_fields(body: Mapping[str, Any], text: bytes) -> bytes:
    """Return an object, encoded, with this text as the fields of one of its managers."""
    entry = {"manager": "m", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": _MARK}
    entry |= {"apiVersion": str(body["apiVersion"]), "time": "2026-01-01T00:00:00Z"}
    return encoded({**body, "metadata": {**body["metadata"], "managedFields": [entry]}}, text)


def encoded(body: Mapping[str, Any], text: bytes) -> bytes:
    """Return an object, encoded, with this text in place of ``_MARK``."""
    return orjson.dumps(body).replace(orjson.dumps(_MARK), text)


def with_parameters(claim: Mapping[str, Any], text: bytes) -> bytes:
    """Return a ResourceClaim, encoded, with this text in the parameters of a driver."""
    opaque = {"driver": "gpu.example.com", "parameters": {"value": _MARK}}
    devices = {**claim["spec"]["devices"], "config": [{"opaque": opaque}]}
    return encoded({**claim, "spec": {"devices": devices}}, text)


async def store(client: KubeClient, resource: Resource, namespace: str, body: bytes) -> None:
    """Create an object. Raises the client's errors, but none for the content of the reply."""
    await _send(client, Request("POST", resource.path(namespace), "application/json", body, "application/json"))


async def spoil(client: KubeClient, resource: Resource, key: ObjectKey, text: bytes, api_version: str = "v1") -> None:
    """Give a stored object this text as the fields of one of its managers."""
    patch = with_managed_fields({"apiVersion": api_version, "metadata": {}}, text)
    path = resource.path(key.namespace, key.name)
    await _send(client, Request("PATCH", path, "application/json", patch, "application/merge-patch+json"))


async def _send(client: KubeClient, request: Request) -> bytes:
    answer = await client._transport.send(request)
    if not 200 <= answer.code <= 299:
        raise from_response(answer.code, answer.headers, answer.body)
    return answer.body


async def read(client: KubeClient, resource: Resource, key: ObjectKey) -> dict[str, Any]:
    """Return an object, whatever it contains, as another program would read it."""
    path = resource.path(key.namespace, key.name)
    body = await _send(client, Request("GET", path, "application/json"))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * _LEVELS)
    try:
        content: dict[str, Any] = json.loads(body.decode(errors="replace"))
    finally:
        sys.setrecursionlimit(limit)
    return content
