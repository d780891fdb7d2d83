"""Which certificate authorities may sign the API server's certificate, kept fresh.

A cluster's CA is rotated while processes run: the kubelet replaces ca.crt in every pod, first with the old and the
new CA, later with the new one alone. A context is therefore built again when the content that it was built from has
changed. Open connections keep theirs; whether the old CA is still trusted is decided for the next one.
"""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shared.kube.errors import CredentialsError


@dataclass(frozen=True, slots=True)
class Authorities:
    """PEM certificates; None are those of the system. ``verify`` off trusts every server, as a kubeconfig may ask."""

    pem: str | None
    verify: bool = True


class Trust:
    """The TLS context of the next connection. ``load`` it before use.

    ``read`` returns the authorities as they are now and raises CredentialsError; ``prepare`` adds a client
    certificate to a new context.
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
        """Read the authorities; return whether there is a new context. Raises CredentialsError and keeps the old one.

        A file that is read while it is written is such an error: the next load reads it whole.
        """
        authorities = await self._read()
        if authorities == self._built_from:
            return False
        try:
            context = new_ssl_context(authorities)
            self._prepare(context)
        except (OSError, ssl.SSLError) as error:
            what = "holds no usable certificate authority or client certificate"
            raise CredentialsError(f"{what} ({error})") from error
        self._context, self._built_from = context, authorities
        return True


def new_ssl_context(authorities: Authorities) -> ssl.SSLContext:
    """Return a context that trusts these authorities. Raises ssl.SSLError for what is no certificate."""
    if authorities.pem is not None and not authorities.pem.strip():
        raise ssl.SSLError("it is empty")  # for ssl nothing means those of the system
    context = ssl.create_default_context(cadata=authorities.pem)
    # From Python 3.13 on, the default refuses authorities without an Authority Key Identifier: many clusters' own.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not authorities.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
