"""The TLS side of the listener: from a certificate to an ``SSLContext``.

A context is always built whole from a pair and only then served: loading a bad pair into one that is being served
would break every handshake from then on.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from webhook.certs.selfsigned import ServingPair


class CertificateError(Exception):
    """The serving certificate cannot be used; the message names the files and the remedy."""


def context_from_files(certificate: Path, private_key: Path) -> ssl.SSLContext:
    """Return the context of a certificate chain and its key. Raises CertificateError."""
    context = _bare_context()
    try:
        # A key with a passphrase is refused: a prompt on the terminal would hang the process.
        context.load_cert_chain(certificate, private_key, password=_no_passphrase)
    except FileNotFoundError as error:
        missing = certificate if not certificate.exists() else private_key
        raise CertificateError(f"{missing}: no such file; give --tls-cert-file and its key") from error
    except ssl.SSLError as error:
        raise CertificateError(
            f"{certificate} and {private_key} are no usable pair ({error.reason or 'not PEM'}); "
            "both must be PEM, and the key must be the certificate's"
        ) from error
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate} and {private_key} cannot be read: {error}") from error
    return context


def context_from_pair(pair: ServingPair) -> ssl.SSLContext:
    """Return the context of a pair made in memory."""
    context = _bare_context()
    with _as_file(pair.certificate + pair.private_key) as path:
        context.load_cert_chain(path)
    return context


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # API servers call webhooks over HTTP/1.1.
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_passphrase() -> str:
    raise ValueError("the private key is encrypted; give one without a passphrase")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Offer the content under a path, because OpenSSL takes nothing else here; in memory where the system can."""
    if hasattr(os, "memfd_create"):  # containers run with a read-only file system
        descriptor = os.memfd_create("serving-pair")
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as named:  # readable by the owner only
        named.write(content)
        named.flush()
        yield named.name
