"""Certificate authorities (CAs) and the serving certificates they sign. Pure except for random numbers.

A CA is stored in a Secret that all replicas share. Each replica signs its own serving certificate (a leaf), which
stays in its memory. A leaf never outlives its CA.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ORGANIZATION = "bowline"
# Maximum clock difference between API server and webhook.
BACKDATED = timedelta(hours=1)
_PEM = serialization.Encoding.PEM
# What reading a damaged PEM raises.
_DAMAGED = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its signing key. Equality compares the certificate only."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(compare=False, repr=False)

    def private_pem(self) -> bytes:
        """Return the key, unencrypted PKCS 8 PEM, as stored in the Secret."""
        return self.key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@dataclass(frozen=True, slots=True)
class Leaf:
    """A serving certificate with its key (PEM) and its signer."""

    certificate: x509.Certificate
    signer: x509.Certificate
    private_key: bytes = field(repr=False)

    def pem(self) -> bytes:
        """Return certificate and key in one PEM, as OpenSSL reads them."""
        return to_pem([self.certificate]) + self.private_key


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the DNS names by which an API server may address a Service; none if either name is empty."""
    if not service or not namespace:
        return ()
    local = f"{service}.{namespace}.svc"
    return (local, f"{local}.cluster.local", f"{service}.{namespace}", service)


def make_authority(now: datetime, life: timedelta) -> Authority:
    """Create a self-signed CA, valid for ``life`` from ``now``."""
    key = ec.generate_private_key(ec.SECP256R1())
    # A unique name: one bundle holds several CAs, and verifiers select them by subject.
    name = _name(f"bowline webhook CA {x509.random_serial_number():x}"[:40])
    certificate = (
        _builder(name, name, key.public_key(), now)
        .not_valid_after(now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def sign_leaf(authority: Authority, names: Iterable[str], now: datetime, life: timedelta) -> Leaf:
    """Sign a new serving certificate for these DNS names and IP addresses; it ends with the CA at the latest."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.certificate
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in dict.fromkeys(names)])
    certificate = (
        _builder(_name("bowline webhook"), signer.subject, key.public_key(), now)
        .not_valid_after(min(now + life, signer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .add_extension(alternatives, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Leaf(certificate, signer, private)


def read_authority(certificate: bytes, key: bytes) -> Authority | None:
    """Return the CA of a PEM pair; None unless it is a pair, and Bowline has made it: verifiers accept such CAs."""
    try:
        signer = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
        # The parts of a certificate are parsed when they are read.
        public, subject, issuer = signer.public_key(), signer.subject, signer.issuer
    except _DAMAGED:
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != public:
        return None
    organizations = [name.value for name in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    is_ours = organizations == [ORGANIZATION] and issuer == subject
    return Authority(signer, private) if is_ours else None


def is_valid_at(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether a verifier with the clock ``now`` accepts the validity period."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def part_of_life(certificate: x509.Certificate, part: float) -> datetime:
    """Return when this fraction of the lifetime of a certificate made by Bowline has passed."""
    issued_at = certificate.not_valid_before_utc + BACKDATED
    return issued_at + (certificate.not_valid_after_utc - issued_at) * part


def to_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return a PEM bundle."""
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def from_pem(bundle: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM bundle, without duplicates; blocks that do not parse are skipped."""
    certificates = []
    for part in bundle.split(b"-----BEGIN CERTIFICATE-----")[1:]:
        try:
            certificates.append(x509.load_pem_x509_certificate(b"-----BEGIN CERTIFICATE-----" + part))
        except _DAMAGED:  # or a placeholder
            continue
    return tuple(dict.fromkeys(certificates))


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
