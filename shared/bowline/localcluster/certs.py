"""Keys and certificates of one local cluster, written into its data folder.

One CA signs everything: the API server's serving certificate and a client certificate per identity. The API server
takes the user from the certificate's common name and the groups from its organisations. All of them are valid for
this cluster only and are kept as long as its data folder.

Elliptic-curve keys throughout: they are generated in under a millisecond, RSA keys would delay the start noticeably.
"""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Longer than any `make up` is kept running; there is no renewal.
_LIFETIME = datetime.timedelta(days=365)
# Tolerates a clock that is set back a little between issuing and using a certificate.
_BACKDATE = datetime.timedelta(minutes=10)

SERVING_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and groups in a client certificate."""

    user: str
    groups: tuple[str, ...] = ()


class LocalAuthority:
    """A certificate authority that signs for one cluster."""

    def __init__(self, name: str = "bowline-local-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = (
            _builder(subject, subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        """The CA certificate, for clients to trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def client(self, identity: Identity) -> KeyPair:
        """Issue a client certificate for the identity."""
        names = [x509.NameAttribute(NameOID.COMMON_NAME, identity.user)]
        names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
        return self._issue(x509.Name(names), ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def server(self, names: tuple[str, ...], addresses: tuple[str, ...] = ("127.0.0.1",)) -> KeyPair:
        """Issue a serving certificate for these DNS names and IP addresses."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(alternatives))

    def _issue(
        self, subject: x509.Name, purpose: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(subject, self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private_pem(key))


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key, unencrypted: the processes that read it are started unattended."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def service_account_keys() -> KeyPair:
    """The pair that signs and verifies ServiceAccount tokens; `certificate` holds the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    # kube-apiserver reads EC keys in the traditional form only.
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return KeyPair(public, private)


def write_pair(folder: Path, name: str, pair: KeyPair) -> tuple[Path, Path]:
    """Write `<name>.crt` and `<name>.key` to the folder; the key is readable by its owner only."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(pair.certificate)
    key.touch(mode=0o600)
    key.write_bytes(pair.key)
    return certificate, key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _LIFETIME)
    )
