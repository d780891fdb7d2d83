"""Builders that several test modules need and plugin authors do not."""

from collections.abc import Mapping
from typing import Any

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.testing.builders import bind_request, stored

_METADATA = ("finalizers", "deletionTimestamp", "generation")


def request(status: Mapping[str, Any] | None = None, uid: str = "pod-uid", **change: Any) -> BindRequest:
    """Return a stored BindRequest of the pod with that UID; ``change`` are fields of its spec, or of its metadata."""
    metadata = {key: change.pop(key) for key in _METADATA if key in change}
    raw = stored(bind_request(uid=uid, **change), uid="request-uid", **metadata)
    return decode_bind_request(raw | ({"status": status} if status else {}))
