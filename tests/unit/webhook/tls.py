"""CAs, serving certificates and handshakes in memory for the webhook's tests."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from bowline_webhook.tls.ca import Authority, Leaf, make_authority, sign_leaf, to_pem

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = 365 * DAY


def authority(at: datetime = NOW, life: timedelta = YEAR) -> Authority:
    """Return a CA created then."""
    return make_authority(at, life)


def leaf_of(signer: Authority, *names: str, at: datetime = NOW, life: timedelta = 7 * DAY) -> Leaf:
    """Return a serving certificate signed then."""
    return sign_leaf(signer, names or ("localhost",), at, life)


def client_context(bundle: bytes) -> ssl.SSLContext:
    """Return a context that verifies servers as an API server does."""
    # The ssl module requires ASCII; comments around certificates may have other characters.
    context = ssl.create_default_context(cadata=bundle.decode("ascii", "ignore"))
    # Go accepts any certificate of the bundle as trust anchor, and requires no Authority Key Identifier.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def shake_hands(
    server: ssl.SSLContext, authority: x509.Certificate | bytes, name: str | None, caller: Path | None = None
) -> bytes:
    """Make a handshake in memory; returns the server's certificate (DER). Raises ssl.SSLError if it is not trusted.

    ``caller`` is a file with the certificate and key of the client.
    """
    bundle = authority if isinstance(authority, bytes) else to_pem([authority])
    client = client_context(bundle)
    if caller is not None:
        client.load_cert_chain(caller)
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=name)
    pending = [client_side, server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                continue
    assert not pending
    return client_side.getpeercert(binary_form=True) or b""
