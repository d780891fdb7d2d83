"""TLS of the listener: the served certificate, and its replacement without a restart.

A context is built completely from a pair, and only then served: loading a bad pair into the context in use would
break every handshake from then on. Open connections are not affected.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from cryptography import x509

from bowline_webhook.tls.ca import Leaf, from_pem

_NOTHING_TO_SERVE: Final = ssl.ALERT_DESCRIPTION_INTERNAL_ERROR


class CertificateError(Exception):
    """A certificate cannot be used; the message states which one and the remedy."""


class ServingContext:
    """The certificate being served. ``context`` is given to the listener once; ``swap`` replaces what it serves.

    ``client_ca`` is a PEM bundle: only clients with a certificate of one of its CAs are accepted. Empty: no client
    authentication.
    """

    def __init__(self, client_ca: bytes = b"") -> None:
        self.certificate: x509.Certificate | None = None
        self.leaf: Leaf | None = None  # if this process has signed it; survives a lost connection to the cluster
        self.context = _bare_context(client_ca)
        # Also called for clients that send no server name.
        self.context.sni_callback = self._choose
        self._current: ssl.SSLContext | None = None
        self._pem = b""
        self._client_ca = client_ca

    def swap(self, pem: bytes) -> None:
        """Serve this chain and key from now on. Raises CertificateError and keeps the previous pair."""
        self._current = _load(pem, self._client_ca)
        self._pem = pem
        self.certificate = next(iter(from_pem(pem)))

    def serve_leaf(self, leaf: Leaf) -> None:
        """Serve a certificate that this process has signed. Raises CertificateError and keeps the previous one."""
        self.swap(leaf.pem())
        self.leaf = leaf

    def not_after(self) -> datetime | None:
        """Return when the served certificate expires; None without one."""
        return self.certificate.not_valid_after_utc if self.certificate is not None else None

    def set_client_ca(self, client_ca: bytes) -> None:
        """Require client certificates of these CAs from now on. Raises CertificateError and keeps the previous
        CAs.
        """
        self._current = _load(self._pem, client_ca) if self._pem else None
        self._client_ca = client_ca

    def _choose(self, connection: ssl.SSLObject, name: str | None, outer: ssl.SSLContext) -> int | None:
        if self._current is None:
            return _NOTHING_TO_SERVE
        connection.context = self._current
        return None


def _authorities(bundle: bytes) -> str:
    """Return a bundle as ASCII, as the ssl module requires: comments around certificates may have other
    characters.
    """
    return bundle.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def _load(pem: bytes, client_ca: bytes) -> ssl.SSLContext:
    context = _bare_context(client_ca)
    try:
        with _as_file(pem) as path:
            # Reject an encrypted key: a passphrase prompt on the terminal would hang the process.
            context.load_cert_chain(path, password=_no_passphrase)
    except ssl.SSLError as error:
        raise CertificateError(
            f"certificate and key are no usable pair ({error.reason or 'not PEM'}); "
            "both must be PEM, and the key must be the certificate's"
        ) from error
    except ValueError as error:
        raise CertificateError(str(error)) from error
    return context


def _bare_context(client_ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # API servers call webhooks over HTTP/1.1.
    context.set_alpn_protocols(["http/1.1"])
    # Clients keep their connections; tickets would outlive the context that issued them.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        # Each is a trust anchor, as for API servers: a client CA need not be a root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=_authorities(client_ca))
        except ssl.SSLError as error:
            raise CertificateError("the clients' CAs are not PEM certificates") from error
    return context


def _no_passphrase() -> str:
    raise ValueError("the private key is encrypted; give one without a passphrase")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path with the content, because OpenSSL loads pairs from files only, and containers have a read-only
    file system.
    """
    descriptor = os.memfd_create("serving-pair")
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
