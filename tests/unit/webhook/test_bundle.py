"""The CA bundles of webhook configurations, and the patches that change them."""

import base64
from typing import Any

import jsonpatch
import pytest

from bowline.localcluster.certs import LocalAuthority
from bowline_webhook.tls.bundle import WebhookCall, bundle_patch, calls, mismatches, published_by_us, trusted_by_all
from bowline_webhook.tls.ca import to_pem
from bowline_webhook.tls.ca_bundle import KEPT, BundleOverlap
from tests.unit.webhook.tls import DAY, NOW, authority

ONE, TWO = authority().certificate, authority().certificate
A, B = to_pem([ONE]), to_pem([TWO])


def configuration(*bundles: bytes | str | None) -> dict[str, Any]:
    texts = [base64.b64encode(b).decode() if isinstance(b, bytes) else b for b in bundles]
    clients: list[dict[str, Any]] = [{"caBundle": text} if text is not None else {} for text in texts]
    return {"metadata": {"name": "c", "resourceVersion": "7"}, "webhooks": [{"clientConfig": c} for c in clients]}


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="an empty one"),
        pytest.param("Cg==", id="a placeholder"),
        pytest.param("%%%", id="no base64"),
        pytest.param(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", id="a broken certificate"),
        pytest.param(A, id="another one"),
    ],
)
def test_an_existing_entry_is_replaced(before: Any) -> None:
    webhook_configuration = configuration(before)
    assert mismatches([webhook_configuration], B) == 1
    after = jsonpatch.apply_patch(webhook_configuration, bundle_patch(webhook_configuration, B))
    assert base64.b64decode(after["webhooks"][0]["clientConfig"]["caBundle"]) == B
    assert mismatches([after], B) == 0


def test_only_bundles_are_patched_and_only_where_needed() -> None:
    patch = bundle_patch(configuration(A, B, A + B, None), A)
    assert [(operation["op"], operation["path"]) for operation in patch] == [
        ("test", "/metadata/resourceVersion"),
        ("add", "/webhooks/1/clientConfig/caBundle"),
        ("add", "/webhooks/2/clientConfig/caBundle"),
        ("add", "/webhooks/3/clientConfig/caBundle"),
    ]


@pytest.mark.parametrize("webhook_configuration", [{"metadata": {}}, {"metadata": {}, "webhooks": []}])
def test_a_configuration_without_webhooks_needs_nothing(webhook_configuration: dict[str, Any]) -> None:
    assert bundle_patch(webhook_configuration, A) == []
    assert trusted_by_all([webhook_configuration]) == frozenset()
    assert calls([webhook_configuration]) == frozenset()


def test_trusted_is_what_every_entry_of_every_configuration_contains() -> None:
    assert trusted_by_all([configuration(A + B, B), configuration(B)]) == {TWO}
    assert trusted_by_all([configuration(A + B, B), configuration(None)]) == frozenset()
    assert trusted_by_all([]) == frozenset()


def test_published_by_us_excludes_certificates_of_others() -> None:
    theirs = LocalAuthority().pem
    signers = published_by_us([configuration(A, theirs + B), configuration(A)])
    assert sorted(map(hash, signers)) == sorted(map(hash, (ONE, TWO)))


def test_a_call_is_checked_by_the_name_it_is_made_to() -> None:
    clients = [
        {"service": {"name": "w", "namespace": "n", "path": "/x"}, "caBundle": base64.b64encode(A).decode()},
        {"service": {"name": "w", "namespace": "n", "path": "/y"}, "caBundle": base64.b64encode(A).decode()},
        {"url": "https://127.0.0.1:9443/x"},
        {"url": "https://[::1]:9443/x"},
        {"url": "https://webhook.example/x"},
        {"url": "https://[broken/x"},
        {},
    ]
    webhook_configuration = {"webhooks": [{"clientConfig": client} for client in clients]}
    names = ("127.0.0.1", "::1", "webhook.example", "")
    assert calls([webhook_configuration]) == {WebhookCall("w.n.svc", A), *(WebhookCall(name, b"") for name in names)}


def test_the_ca_of_another_replicas_file_remains_published_for_a_time() -> None:
    old, new = authority(NOW - DAY).certificate, authority(NOW).certificate
    mine, theirs, late = BundleOverlap(), BundleOverlap(), KEPT.total_seconds()
    assert mine.of([new], [], 0) == (new,)
    assert mine.of([new], [old], 0) == (new, old)
    assert theirs.of([old], [new, old], 0) == theirs.of([old], [old, new], 0) == (new, old), "no write is needed"
    assert mine.of([new], [new, old], late - 1) == (new, old)
    assert mine.of([new], [new, old], late) == (new,)
    assert mine.of([new], [new], late) == (new,)
    assert mine.of([new], [old, new], late) == (new, old), "added again: its time starts again"


def test_a_replaced_files_former_ca_remains_published_for_a_time() -> None:
    old, new = authority(NOW - DAY).certificate, authority(NOW).certificate
    overlap = BundleOverlap()
    assert overlap.of([old], [old], 0) == (old,)
    late = 2 * KEPT.total_seconds()
    assert overlap.of([new], [old], late) == (new, old)
    assert overlap.of([new], [new, old], late + KEPT.total_seconds()) == (new,)
