"""What must change in a webhook configuration for the API server to trust a certificate authority. Pure.

``caBundle`` holds the authorities of all replicas: each signs its own certificate, and a replica that put only its
own there would cut off the others. Authorities that are not Bowline's are dropped; of Bowline's, those of the newest
replicas are kept, because nobody says goodbye for a replica that was killed.
"""

import base64
import binascii
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from shared.api.meta import Object
from webhook.certs.selfsigned import ORGANIZATION

# More than the replicas of one release, through a rollout that doubles them. About 700 bytes each.
MAX_AUTHORITIES = 16


def bundle_patch(configuration: Object, authority: bytes, now: datetime) -> list[dict[str, Any]]:
    """Return the JSON Patch by which every webhook trusts the authority; empty if all do.

    It touches nothing but ``caBundle``, and fails if the configuration has changed since it was read: another
    replica may have added its own meanwhile.
    """
    operations = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        client = webhook.get("clientConfig") or {}
        before = _decoded(client.get("caBundle"))
        after = merged_bundle(before, authority, now)
        if after != before:
            path = f"/webhooks/{index}/clientConfig/caBundle"
            operations.append({"op": "add", "path": path, "value": base64.b64encode(after).decode()})
    if not operations:
        return []
    version = configuration["metadata"].get("resourceVersion", "")
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]


def merged_bundle(bundle: bytes, authority: bytes, now: datetime) -> bytes:
    """Return the bundle with the authority in it; unchanged if it is there already."""
    ours = x509.load_pem_x509_certificate(authority)
    known = [found for found in _certificates(bundle) if _is_bowlines(found)]
    if ours in known:
        return bundle
    valid = [found for found in known if found.not_valid_after_utc > now]
    newest = sorted(valid, key=lambda found: found.not_valid_before_utc)[-(MAX_AUTHORITIES - 1) :]
    return b"".join(found.public_bytes(Encoding.PEM) for found in (*newest, ours))


def _decoded(value: Any) -> bytes:
    try:
        return base64.b64decode(value or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        return b""


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:  # empty, or somebody's placeholder
        return []


def _is_bowlines(certificate: x509.Certificate) -> bool:
    names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return any(name.value == ORGANIZATION for name in names)
