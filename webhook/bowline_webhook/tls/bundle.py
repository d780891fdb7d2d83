"""The ``clientConfig`` of webhook configurations: which CA bundle each entry has, and the patch that corrects it.
Pure.

An entry (one of ``webhooks``) names an address and, in ``caBundle``, the CAs that the API server verifies it with.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any

from cryptography import x509

from bowline.api.meta import Object
from bowline_webhook.tls.ca import from_pem


def entries(configurations: Iterable[Object]) -> Iterator[Object]:
    """Yield the ``clientConfig`` of every entry."""
    for configuration in configurations:
        for webhook in configuration.get("webhooks") or ():
            yield webhook.get("clientConfig") or {}


def trusted_by_all(configurations: Iterable[Object]) -> frozenset[x509.Certificate]:
    """Return the CAs that every entry trusts; none if there is no entry."""
    bundles = [frozenset(from_pem(bundle)) for bundle in {bundle_of(client) for client in entries(configurations)}]
    return frozenset.intersection(*bundles) if bundles else frozenset()


def published_cas(configurations: Iterable[Object]) -> tuple[x509.Certificate, ...]:
    """Return the CAs that some entry trusts, without duplicates."""
    bundles = {bundle_of(client) for client in entries(configurations)}
    return tuple(dict.fromkeys(c for bundle in sorted(bundles) for c in from_pem(bundle)))


def bundle_patch(configuration: Object, bundle: bytes) -> list[dict[str, Any]]:
    """Return the JSON Patch that sets the bundle in every entry; empty if all have it.

    It changes only ``caBundle``, and tests the resourceVersion: entries are addressed by index, which another writer
    may have changed since the read.
    """
    value = base64.b64encode(bundle).decode()
    operations = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value}
        for index, client in enumerate(entries([configuration]))
        if bundle_of(client) != bundle
    ]
    if not operations:
        return []
    version = configuration["metadata"].get("resourceVersion", "")
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]


def bundle_of(client: Object) -> bytes:
    """Return an entry's decoded bundle; empty if absent or not base64."""
    try:
        return base64.b64decode(client.get("caBundle") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        return b""
