"""The CA's Secret: conversion between the API object and ``CaState``. Pure.

::

    tls.crt, tls.key      the CA that signs
    next.crt, next.key    the CA that has been introduced and signs next; only during a renewal
    ca.crt                the bundle of all trusted CAs
    annotation            since when the present CA signs

Reading never fails: an unusable entry counts as absent.
"""

import base64
import binascii
from datetime import UTC, datetime
from typing import Any

from bowline.api.meta import Object
from bowline.api.names import ANNOTATION_CA_SWITCHED_AT
from bowline_webhook.tls.ca import Authority, from_pem, read_authority, to_pem
from bowline_webhook.tls.rotation import CaState

_ACTIVE, _UPCOMING, _BUNDLE = ("tls.crt", "tls.key"), ("next.crt", "next.key"), "ca.crt"


def read_secret(secret: Object) -> CaState:
    """Return the state stored in the Secret."""
    data = secret.get("data") or {}
    return CaState(
        active=_authority(data, *_ACTIVE),
        upcoming=_authority(data, *_UPCOMING),
        bundle=from_pem(_decode(data.get(_BUNDLE))),
        switched_at=_time((secret["metadata"].get("annotations") or {}).get(ANNOTATION_CA_SWITCHED_AT)),
    )


def with_state(secret: Object, state: CaState) -> dict[str, Any]:
    """Return the Secret with this state as its data; keeps the resourceVersion, so a concurrent change is a
    Conflict.
    """
    metadata = dict(secret["metadata"])
    metadata.pop("managedFields", None)
    if state.switched_at is not None:
        stamp = state.switched_at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION_CA_SWITCHED_AT: stamp}
    data = {_BUNDLE: _encode(to_pem(state.bundle))}
    for keys, signer in ((_ACTIVE, state.active), (_UPCOMING, state.upcoming)):
        if signer is not None:
            data |= dict(zip(keys, map(_encode, (to_pem([signer.certificate]), signer.private_pem())), strict=True))
    return {**secret, "metadata": metadata, "data": data}


def _authority(data: Object, certificate: str, key: str) -> Authority | None:
    return read_authority(_decode(data.get(certificate)), _decode(data.get(key)))


def _decode(value: Any) -> bytes:
    try:
        return base64.b64decode(value or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        return b""


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _time(text: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (TypeError, ValueError, OverflowError):
        return None
