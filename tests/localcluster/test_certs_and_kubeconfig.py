"""Certificates verify as in TLS libraries; kubeconfigs contain user and address, and keep secrets private."""

import base64
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from bowline.localcluster.certs import SERVING_NAMES, Identity, LocalAuthority, service_account_keys, write_pair
from bowline.localcluster.kubeconfig import certificate_user, kubeconfig_text, token_user, write_private


def load_certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


@pytest.mark.parametrize("name", SERVING_NAMES)
def test_the_serving_certificate_verifies_for_each_of_its_names(name: str) -> None:
    authority = LocalAuthority()
    leaf = load_certificate(authority.server(SERVING_NAMES).certificate)
    verifier = (
        PolicyBuilder().store(Store([load_certificate(authority.pem)])).build_server_verifier(x509.DNSName(name))
    )
    assert verifier.verify(leaf, [])[0] == leaf


def test_another_authority_or_another_name_does_not_verify() -> None:
    leaf = load_certificate(LocalAuthority().server(("localhost",)).certificate)
    for store, name in ((LocalAuthority(), "localhost"), (LocalAuthority(), "elsewhere")):
        builder = PolicyBuilder().store(Store([load_certificate(store.pem)]))
        with pytest.raises(VerificationError):
            builder.build_server_verifier(x509.DNSName(name)).verify(leaf, [])


def test_a_client_certificate_carries_user_and_groups() -> None:
    authority = LocalAuthority()
    leaf = load_certificate(authority.client(Identity("alice", ("one", "two"))).certificate)
    leaf.verify_directly_issued_by(load_certificate(authority.pem))
    names = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [name.value for name in names] == ["alice"]
    assert [group.value for group in groups] == ["one", "two"]
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_the_service_account_keys_belong_together() -> None:
    pair = service_account_keys()
    private = serialization.load_pem_private_key(pair.key, None)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert public == pair.certificate


def test_keys_and_tokens_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    certificate, key = write_pair(tmp_path, "alice", LocalAuthority().client(Identity("alice")))
    token = write_private(tmp_path / "deep" / "token", "secret")
    write_private(token, "renewed")
    assert certificate.read_bytes().startswith(b"-----BEGIN CERTIFICATE")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key, token)] == [0o600, 0o600]
    assert token.read_text() == "renewed"


def test_a_kubeconfig_has_one_context_that_is_current() -> None:
    pair = LocalAuthority().client(Identity("alice"))
    document = yaml.safe_load(
        kubeconfig_text("https://127.0.0.1:1", Path("/pki/ca.crt"), certificate_user(pair), "here")
    )
    [context] = document["contexts"]
    assert document["current-context"] == context["name"]
    assert context["context"]["namespace"] == "here"
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert document["clusters"][0]["cluster"]["certificate-authority"] == "/pki/ca.crt"
    assert base64.b64decode(document["users"][0]["user"]["client-key-data"]) == pair.key


def test_a_token_is_named_by_its_file_so_that_it_can_be_renewed(tmp_path: Path) -> None:
    assert token_user(tmp_path / "token") == {"tokenFile": str(tmp_path / "token")}
