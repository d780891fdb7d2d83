"""The certificate authorities (CAs) that may sign the API server's certificate, kept up to date.

A cluster's CA is rotated while processes run: the kubelet replaces ca.crt in every pod, first with the old and the
new CA, later with the new one alone. So the context is rebuilt when the content has changed. Open connections keep
theirs; the next connection is verified with the new one.
"""

import ssl
from collections.abc import Callable

from bowline.kube.errors import CredentialsError


class Trust:
    """The TLS context of the next connection. ``load`` it before use.

    ``read`` returns the current CAs as PEM, None for the system's, or raises CredentialsError.
    """

    def __init__(self, read: Callable[[], str | None]) -> None:
        self._read = read
        self._built_from: str | None = None
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The context as of the last ``load``."""
        if self._context is None:
            raise RuntimeError("the certificate authorities are not loaded")
        return self._context

    def load(self) -> bool:
        """Read the CAs; return whether there is a new context. Raises CredentialsError and keeps the old one.

        A file that is read while being written causes such an error; the next load reads it completely.
        """
        authorities = self._read()
        if self._context is not None and authorities == self._built_from:
            return False
        try:
            context = new_ssl_context(authorities)
        except (OSError, ssl.SSLError) as error:
            raise CredentialsError(f"holds no usable certificate authority ({error})") from error
        self._context, self._built_from = context, authorities
        return True


def new_ssl_context(authorities: str | None) -> ssl.SSLContext:
    """Return a context that trusts these CAs. Raises ssl.SSLError if there is no certificate."""
    if authorities is not None and not authorities.strip():
        raise ssl.SSLError("it is empty")  # ssl treats an empty string as the system's CAs
    context = ssl.create_default_context(cadata=authorities)
    # From Python 3.13 on, the default rejects CAs without an Authority Key Identifier, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
