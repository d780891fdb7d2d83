"""The certificate authorities (CAs) that may sign the API server's certificate, kept up to date.

A cluster's CA is rotated while processes run: the kubelet replaces ca.crt in every pod, first with the old and the
new CA, later with the new one alone. So the context is rebuilt when the content has changed. Open connections keep
theirs; the next connection is verified with the new one. Decision 121.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bowline.kube.errors import CredentialsError


@dataclass(frozen=True, slots=True)
class Authorities:
    """PEM certificates; None means the system's. ``verify`` off trusts every server, as a kubeconfig may request."""

    pem: str | None
    verify: bool = True


class Trust:
    """The TLS context of the next connection. ``load`` it before use.

    ``read`` returns the current CAs or raises CredentialsError; ``prepare`` adds a client certificate to a new
    context.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Authorities]],
        prepare: Callable[[ssl.SSLContext], None] = lambda _: None,
    ) -> None:
        self._read = read
        self._prepare = prepare
        self._built_from: Authorities | None = None
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The context as of the last ``load``."""
        if self._context is None:
            raise RuntimeError("the certificate authorities are not loaded")
        return self._context

    async def load(self) -> bool:
        """Read the CAs; return whether there is a new context. Raises CredentialsError and keeps the old one.

        A file that is read while being written causes such an error; the next load reads it completely.
        """
        authorities = await self._read()
        if authorities == self._built_from:
            return False
        try:
            context = new_ssl_context(authorities)
            self._prepare(context)
        except (OSError, ssl.SSLError) as error:
            problem = "holds no usable certificate authority or client certificate"
            raise CredentialsError(f"{problem} ({error})") from error
        self._context, self._built_from = context, authorities
        return True


def new_ssl_context(authorities: Authorities) -> ssl.SSLContext:
    """Return a context that trusts these CAs. Raises ssl.SSLError if there is no certificate."""
    if authorities.pem is not None and not authorities.pem.strip():
        raise ssl.SSLError("it is empty")  # ssl treats an empty string as the system's CAs
    context = ssl.create_default_context(cadata=authorities.pem)
    # From Python 3.13 on, the default rejects CAs without an Authority Key Identifier, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not authorities.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
