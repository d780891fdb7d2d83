"""Certificates: validity, rejected ones, replacements, and the content of a Secret."""

import base64
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client import CollectorRegistry

from bowline.testing.clock import SteppedClock
from bowline_webhook.tls.ca import (
    Authority,
    Leaf,
    from_pem,
    is_valid_at,
    part_of_life,
    read_authority,
    service_names,
    to_pem,
)
from bowline_webhook.tls.files import CertificateFiles, FilePaths, rejection_reason
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.rotation import CaState
from bowline_webhook.tls.secret import read_secret, with_state
from bowline_webhook.tls.serving import CertificateError, ServingContext
from tests.unit.webhook.tls import DAY, NOW, authority, leaf_of, shake_hands

TODAY = datetime.now(UTC).replace(microsecond=0)
NAMES = (*service_names("bowline-webhook", "bowline-system"), "localhost", "127.0.0.1", "::1")


class TestSelfSigned:
    def test_a_client_that_trusts_the_ca_accepts_every_name(self) -> None:
        signer = authority(TODAY)
        serving = ServingContext()
        serving.swap(leaf_of(signer, *NAMES, at=TODAY).pem())
        for name in ("bowline-webhook.bowline-system.svc", "localhost", "127.0.0.1", "::1"):
            shake_hands(serving.context, signer.certificate, name)

    def test_a_leaf_never_outlives_its_authority(self) -> None:
        signer = authority(NOW, DAY)
        assert leaf_of(signer, life=7 * DAY).certificate.not_valid_after_utc == signer.certificate.not_valid_after_utc

    def test_the_leaf_cannot_sign_and_serves_only(self) -> None:
        signer = authority()
        leaf = leaf_of(signer).certificate
        extensions = leaf.extensions
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        usages = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        assert usages == [ExtendedKeyUsageOID.SERVER_AUTH]
        leaf.verify_directly_issued_by(signer.certificate)

    def test_clocks_may_differ_by_an_hour(self) -> None:
        signer = authority(NOW, DAY)
        for certificate in (signer.certificate, leaf_of(signer, life=DAY).certificate):
            assert is_valid_at(certificate, NOW - timedelta(minutes=59))
            assert not is_valid_at(certificate, NOW - timedelta(minutes=61))
            assert is_valid_at(certificate, NOW + DAY - timedelta(seconds=1))
            assert not is_valid_at(certificate, NOW + DAY)
            assert part_of_life(certificate, 0.5) == NOW + DAY / 2


class TestReading:
    def test_a_certificate_that_cannot_sign_is_none(self) -> None:
        signer, stranger = authority(), authority()
        leaf = leaf_of(signer)
        pem = to_pem([signer.certificate])
        assert read_authority(pem, stranger.private_pem()) is None
        assert read_authority(to_pem([leaf.certificate]), leaf.private_key) is None
        assert read_authority(b"", b"") is None
        assert read_authority(pem, b"junk") is None
        assert read_authority(pem[:-60], signer.private_pem()) is None

    @pytest.mark.parametrize(
        ("organization", "key"),
        [
            pytest.param("theirs", ec.generate_private_key(ec.SECP256R1()), id="of another organization"),
            pytest.param("bowline", rsa.generate_private_key(65537, 2048), id="with another kind of key"),
        ],
    )
    def test_a_ca_that_bowline_has_not_made_is_none(self, organization: str, key: Any) -> None:
        """Whether verifiers accept what it signs is not known."""
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(1).not_valid_before(TODAY - DAY).not_valid_after(TODAY + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        assert read_authority(to_pem([builder.sign(key, hashes.SHA256())]), private) is None

    def test_a_bundle_contains_each_complete_certificate_once(self) -> None:
        first, second = authority().certificate, authority().certificate
        broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        assert from_pem(b"# ours\n" + to_pem([first]) + broken + to_pem([second, first])) == (first, second)
        assert from_pem(b"\xff junk") == from_pem(b"") == ()


class TestSecret:
    def test_a_state_round_trips(self) -> None:
        active, upcoming, former = authority(), authority(), authority()
        bundle = tuple(signer.certificate for signer in (active, upcoming, former))
        state = CaState(active, upcoming, bundle, NOW)
        assert read_secret(with_state({"metadata": {"name": "n"}}, state)) == state

    def test_removed_fields_are_deleted_and_the_guard_is_kept(self) -> None:
        active, upcoming = authority(), authority()
        both = CaState(active, upcoming, (active.certificate, upcoming.certificate))
        before = with_state({"metadata": {"name": "n"}}, both)
        before["metadata"] |= {"resourceVersion": "7", "annotations": {"a": "b"}, "managedFields": [{}]}
        after = with_state(before, CaState(upcoming, None, (upcoming.certificate,), NOW))
        assert read_secret(after) == CaState(upcoming, None, (upcoming.certificate,), NOW)
        assert after["metadata"]["resourceVersion"] == "7"
        assert after["metadata"]["annotations"]["a"] == "b"
        assert "managedFields" not in after["metadata"]

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"data": None}, id="no data"),
            pytest.param({"data": {"tls.crt": "%%%", "tls.key": 1, "ca.crt": ""}}, id="no base64"),
            pytest.param({"data": {"tls.crt": base64.b64encode(b"\xff").decode()}}, id="no PEM"),
            pytest.param({"metadata": {"annotations": {"bowline.dev/ca-switched-at": "soon"}}}, id="no time"),
            pytest.param({"metadata": {"annotations": {"bowline.dev/ca-switched-at": "2026-01-01"}}}, id="no zone"),
            pytest.param(
                {"metadata": {"annotations": {"bowline.dev/ca-switched-at": "0001-01-01T00:00:00+14:00"}}},
                id="no time in UTC",
            ),
        ],
    )
    def test_reading_never_fails(self, fields: dict[str, Any]) -> None:
        assert read_secret({"metadata": {}, **fields}) == CaState(None)


class TestExchange:
    def test_an_invalid_pair_does_not_replace_the_served_one(self) -> None:
        signer = authority(TODAY)
        good, new_leaf = leaf_of(signer, at=TODAY), leaf_of(signer, at=TODAY)
        serving = ServingContext()
        with pytest.raises(ssl.SSLError):
            shake_hands(serving.context, signer.certificate, "localhost")
        serving.swap(good.pem())
        for bad in (b"", to_pem([good.certificate]) + new_leaf.private_key, good.pem()[:-70], new_leaf.private_key):
            with pytest.raises(CertificateError):
                serving.swap(bad)
            der = shake_hands(serving.context, signer.certificate, "localhost")
            assert der == good.certificate.public_bytes(serialization.Encoding.DER)
        serving.swap(new_leaf.pem())
        der = shake_hands(serving.context, signer.certificate, None)
        assert der == new_leaf.certificate.public_bytes(serialization.Encoding.DER)
        assert serving.not_after() == new_leaf.certificate.not_valid_after_utc

    def test_an_authority_of_callers_need_not_be_a_root(self, tmp_path: Path) -> None:
        root, keys = authority(TODAY), [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, word)]) for word in ("between", "apiserver")]
        chain: list[x509.Certificate] = []
        for name, key, issuer, by in zip(
            names, keys, (root.certificate.subject, names[0]), (root.key, keys[0]), strict=True
        ):
            builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
            builder = builder.serial_number(1).not_valid_before(TODAY - DAY).not_valid_after(TODAY + DAY)
            builder = builder.add_extension(x509.BasicConstraints(ca=not chain, path_length=None), critical=True)
            chain.append(builder.sign(by, hashes.SHA256()))
        between, caller = chain[0], tmp_path / "caller.pem"
        caller.write_bytes(to_pem(chain[1:]) + Authority(chain[1], keys[1]).private_pem())
        serving = ServingContext(to_pem([between]))
        serving.swap(leaf_of(root, at=TODAY).pem())
        shake_hands(serving.context, root.certificate, "localhost", caller)
        serving.set_client_ca(to_pem([authority(TODAY).certificate]))
        with pytest.raises(ssl.SSLError):
            shake_hands(serving.context, root.certificate, "localhost", caller)

    def test_a_key_with_a_passphrase_is_rejected_without_a_prompt(self) -> None:
        encrypted_key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        with pytest.raises(CertificateError, match="encrypted"):
            ServingContext().swap(to_pem([leaf_of(authority()).certificate]) + encrypted_key)


class TestFiles:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> FilePaths:
        return FilePaths(tmp_path / "tls.crt", tmp_path / "tls.key")

    def put(self, paths: FilePaths, leaf: Leaf, key: bytes = b"") -> None:
        assert paths.certificate
        assert paths.private_key
        paths.certificate.write_bytes(to_pem([leaf.certificate]))
        paths.private_key.write_bytes(key or leaf.private_key)

    def files(self, paths: FilePaths) -> CertificateFiles:
        return CertificateFiles(paths, CertificateMetrics(CollectorRegistry()), SteppedClock(TODAY))

    def test_a_renewed_pair_is_served_and_neither_half_of_one_nor_one_that_has_ended(self, paths: FilePaths) -> None:
        with pytest.raises(CertificateError, match=r"tls\.crt: no such file"):
            self.files(paths)
        signer = authority(TODAY)
        old, new = leaf_of(signer, at=TODAY), leaf_of(signer, at=TODAY)
        self.put(paths, old)
        files = self.files(paths)
        ended = leaf_of(signer, at=TODAY - 9 * DAY, life=DAY)
        for leaf, key, message in ((new, old, "no usable pair"), (ended, ended, "is not valid today")):
            self.put(paths, leaf, key.private_key)
            with pytest.raises(CertificateError, match=message):
                files.reload()
            assert files.serving.certificate == old.certificate
        self.put(paths, new)
        files.reload()
        assert files.serving.certificate == new.certificate

    def test_an_invalid_certificate_replaces_only_an_invalid_one(self) -> None:
        signer = authority()
        (valid,), (former,), (coming,) = (
            (leaf_of(signer, at=at, life=DAY).certificate,) for at in (NOW, NOW - 9 * DAY, NOW + 9 * DAY)
        )
        assert rejection_reason((former,), valid, NOW)
        assert rejection_reason((coming,), valid, NOW)
        assert rejection_reason((), valid, NOW)
        assert not rejection_reason((valid,), former, NOW)
        assert not rejection_reason((valid,), valid, NOW)
        assert not rejection_reason((coming,), former, NOW)
        assert not rejection_reason((former,), None, NOW)

    def test_callers_authorities_are_reloaded_and_unusable_ones_block_no_renewed_pair(self, paths: FilePaths) -> None:
        signer = authority(TODAY)
        assert paths.certificate
        callers = paths.certificate.with_name("callers.crt")
        paths = replace(paths, client_ca=callers)
        self.put(paths, leaf_of(signer, at=TODAY))
        callers.write_bytes(b"")
        with pytest.raises(CertificateError, match=r"callers\.crt: is empty"):
            self.files(paths)
        callers.write_bytes(to_pem([signer.certificate]))
        files = self.files(paths)
        assert files.serving.context.verify_mode is ssl.CERT_REQUIRED
        for content, message in ((b"junk", "clients' CAs"), (b"", r"callers\.crt: is empty")):
            renewed = leaf_of(signer, at=TODAY)
            callers.write_bytes(content)
            self.put(paths, renewed)
            with pytest.raises(CertificateError, match=message):
                files.reload()
            assert files.serving.certificate == renewed.certificate
        callers.write_bytes(to_pem([authority(TODAY).certificate]))
        files.reload()
