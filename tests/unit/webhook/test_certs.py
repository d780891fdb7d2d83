"""Certificates: what they are valid for, what is refused, and how authorities of replicas share a bundle."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from webhook.certs.bundle import MAX_AUTHORITIES, bundle_patch, merged_bundle
from webhook.certs.context import CertificateError, context_from_files, context_from_pair
from webhook.certs.selfsigned import LIFETIME, ServingPair, make_serving_pair, service_names

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def authority(at: datetime = NOW) -> bytes:
    return make_serving_pair(["localhost"], at).authority


def configuration(*bundles: bytes | str | None) -> dict[str, Any]:
    texts = [base64.b64encode(b).decode() if isinstance(b, bytes) else b for b in bundles]
    clients: list[dict[str, Any]] = [{"caBundle": text} if text is not None else {} for text in texts]
    return {"metadata": {"name": "c", "resourceVersion": "7"}, "webhooks": [{"clientConfig": c} for c in clients]}


def handshake(server: ssl.SSLContext, trusted: bytes, name: str) -> None:
    """Shake hands in memory. Raises ssl.SSLError if the client does not believe the server."""
    client = ssl.create_default_context(cadata=trusted.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = client.wrap_bio(to_client, to_server, server_hostname=name)
    here = server.wrap_bio(to_server, to_client, server_side=True)
    pending = [there, here]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not pending


class TestSelfSigned:
    NAMES = (*service_names("bowline-webhook", "bowline-system"), "localhost", "127.0.0.1", "::1")

    def test_a_client_that_trusts_the_authority_believes_every_name(self) -> None:
        pair = make_serving_pair(self.NAMES, datetime.now(UTC))
        for name in ("bowline-webhook.bowline-system.svc", "localhost", "127.0.0.1", "::1"):
            handshake(context_from_pair(pair), pair.authority, name)

    def test_another_name_is_not_believed(self) -> None:
        pair = make_serving_pair(self.NAMES, datetime.now(UTC))
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(context_from_pair(pair), pair.authority, "other.bowline-system.svc")

    def test_another_authority_does_not_vouch(self) -> None:
        pair = make_serving_pair(self.NAMES, datetime.now(UTC))
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(context_from_pair(pair), authority(datetime.now(UTC)), "localhost")

    def test_a_bundle_of_several_replicas_vouches_for_each(self) -> None:
        now = datetime.now(UTC)
        pairs = [make_serving_pair(self.NAMES, now) for _ in range(3)]
        bundle = b"".join(pair.authority for pair in pairs)
        for pair in pairs:
            handshake(context_from_pair(pair), bundle, "localhost")

    def test_the_leaf_cannot_sign_and_the_authority_can(self) -> None:
        pair = make_serving_pair(self.NAMES, NOW)
        ca, leaf = (x509.load_pem_x509_certificate(pem) for pem in (pair.authority, pair.certificate))
        assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert leaf.not_valid_before_utc < NOW < leaf.not_valid_after_utc
        leaf.verify_directly_issued_by(ca)

    def test_without_a_service_there_are_no_service_names(self) -> None:
        assert service_names("", "x") == service_names("x", "") == ()


class TestFiles:
    @pytest.fixture
    def pair(self) -> ServingPair:
        return make_serving_pair(["localhost"], datetime.now(UTC))

    def written(self, folder: Path, certificate: bytes, key: bytes) -> tuple[Path, Path]:
        paths = folder / "tls.crt", folder / "tls.key"
        for path, content in zip(paths, (certificate, key), strict=True):
            path.write_bytes(content)
        return paths

    def test_a_pair_is_served(self, pair: ServingPair, tmp_path: Path) -> None:
        context = context_from_files(*self.written(tmp_path, pair.certificate, pair.private_key))
        handshake(context, pair.authority, "localhost")

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(CertificateError, match=r"tls\.crt: no such file"):
            context_from_files(tmp_path / "tls.crt", tmp_path / "tls.key")

    def test_a_key_of_another_certificate_is_refused(self, pair: ServingPair, tmp_path: Path) -> None:
        other = make_serving_pair(["localhost"], NOW)
        with pytest.raises(CertificateError, match="no usable pair"):
            context_from_files(*self.written(tmp_path, pair.certificate, other.private_key))

    def test_what_is_no_pem_is_refused(self, pair: ServingPair, tmp_path: Path) -> None:
        with pytest.raises(CertificateError, match="no usable pair"):
            context_from_files(*self.written(tmp_path, b"junk", pair.private_key))

    def test_a_key_with_a_passphrase_is_refused_without_asking(self, pair: ServingPair, tmp_path: Path) -> None:
        locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        with pytest.raises(CertificateError, match="encrypted"):
            context_from_files(*self.written(tmp_path, pair.certificate, locked))


class TestBundle:
    @pytest.mark.parametrize(
        "before",
        [
            pytest.param(None, id="none"),
            pytest.param("", id="an empty one"),
            pytest.param("Cg==", id="a placeholder"),
            pytest.param("%%%", id="no base64"),
            pytest.param(
                b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", id="a broken certificate"
            ),
        ],
    )
    def test_a_bundle_of_nobodys_is_replaced(self, before: Any) -> None:
        ours = authority()
        found = configuration(before)
        after = jsonpatch.apply_patch(found, bundle_patch(found, ours, NOW))
        assert base64.b64decode(after["webhooks"][0]["clientConfig"]["caBundle"]) == ours

    def test_only_bundles_are_touched_and_only_where_needed(self) -> None:
        ours, other = authority(), authority()
        patch = bundle_patch(configuration(ours, other, other + ours, None), ours, NOW)
        assert [(operation["op"], operation["path"]) for operation in patch] == [
            ("test", "/metadata/resourceVersion"),
            ("add", "/webhooks/1/clientConfig/caBundle"),
            ("add", "/webhooks/3/clientConfig/caBundle"),
        ]

    @pytest.mark.parametrize("found", [{"metadata": {}}, {"metadata": {}, "webhooks": []}])
    def test_a_configuration_without_webhooks_needs_nothing(self, found: dict[str, Any]) -> None:
        assert bundle_patch(found, authority(), NOW) == []

    def test_other_replicas_stay_trusted(self) -> None:
        ours, other = authority(), authority(NOW - timedelta(days=1))
        assert merged_bundle(other, ours, NOW) == other + ours

    def test_an_expired_authority_and_a_strangers_are_dropped(self) -> None:
        ours, expired = authority(), authority(NOW - LIFETIME - timedelta(days=2))
        leaf = make_serving_pair(["x"], NOW)
        stranger = leaf.certificate.replace(b"\n", b"\r\n")
        assert merged_bundle(expired, ours, NOW) == ours
        assert ours in merged_bundle(stranger, ours, NOW)

    def test_the_newest_are_kept_when_there_are_too_many(self) -> None:
        many = [authority(NOW - timedelta(hours=hours)) for hours in range(MAX_AUTHORITIES + 3)]
        ours = authority()
        merged = merged_bundle(b"".join(reversed(many)), ours, NOW)
        assert merged.count(b"BEGIN") == MAX_AUTHORITIES
        assert merged.endswith(ours)
        assert many[0] in merged
        assert many[-1] not in merged
