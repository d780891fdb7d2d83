"""The CA bundles of webhook configurations, and the patches that change them."""

import base64
from typing import Any

import pytest

from bowline_webhook.tls.bundle import bundle_patch, published_cas, trusted_by_all
from bowline_webhook.tls.ca import to_pem
from tests.unit.webhook.tls import authority

ONE, TWO = authority().certificate, authority().certificate
A, B = to_pem([ONE]), to_pem([TWO])


def configuration(*bundles: bytes | str | None) -> dict[str, Any]:
    texts = [base64.b64encode(b).decode() if isinstance(b, bytes) else b for b in bundles]
    clients: list[dict[str, Any]] = [{"caBundle": text} if text is not None else {} for text in texts]
    return {"metadata": {"name": "c", "resourceVersion": "7"}, "webhooks": [{"clientConfig": c} for c in clients]}


def test_only_bundles_are_patched_and_only_where_needed() -> None:
    guard, *patch = bundle_patch(configuration(A, B, A + B, None, "", "%%%"), A)
    assert guard == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    bundle = base64.b64encode(A).decode()
    assert patch == [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle} for number in range(1, 6)
    ]


@pytest.mark.parametrize("webhook_configuration", [{"metadata": {}}, {"metadata": {}, "webhooks": []}])
def test_a_configuration_without_webhooks_needs_nothing(webhook_configuration: dict[str, Any]) -> None:
    assert bundle_patch(webhook_configuration, A) == []
    assert trusted_by_all([webhook_configuration]) == frozenset()


def test_trusted_is_what_every_entry_of_every_configuration_contains() -> None:
    assert trusted_by_all([configuration(A + B, B), configuration(B)]) == {TWO}
    assert trusted_by_all([configuration(A + B, B), configuration(None)]) == frozenset()
    assert trusted_by_all([]) == frozenset()


def test_published_is_what_some_entry_of_some_configuration_contains() -> None:
    assert set(published_cas([configuration(A, A + B), configuration(None)])) == {ONE, TWO}
    assert published_cas([configuration(None, "%%%")]) == ()
