"""A certificate authority and one serving certificate of it, made in memory.

Each process makes its own at start: no key is ever written anywhere, and the authority's is forgotten as soon as it
has signed. Pure but for the random numbers.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ORGANIZATION = "bowline"
# Clocks of API server and webhook may differ.
BACKDATED = timedelta(hours=1)
# Nothing renews it while the process lives, so it must outlive the process; a restart makes a new one.
LIFETIME = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class ServingPair:
    """A serving certificate with its key, and the certificate authority that vouches for it; all PEM."""

    certificate: bytes
    private_key: bytes
    authority: bytes


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names by which an API server may know a Service."""
    if not service or not namespace:
        return ()
    local = f"{service}.{namespace}.svc"
    return (local, f"{local}.cluster.local", f"{service}.{namespace}", service)


def make_serving_pair(names: Iterable[str], now: datetime) -> ServingPair:
    """Make a pair that is valid for the DNS names and IP addresses."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # A name of its own: several authorities stand in one bundle, and verifiers look them up by name.
    authority_name = _name(f"bowline webhook CA {x509.random_serial_number():x}"[:40])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in dict.fromkeys(names)])
    certificate = (
        _builder(_name("bowline webhook"), authority_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .add_extension(alternatives, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return ServingPair(
        certificate=certificate.public_bytes(pem),
        private_key=key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        authority=authority.public_bytes(pem),
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
