"""CAs, serving certificates and handshakes in memory for the webhook's tests."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from bowline_webhook.tls.ca import Authority, Leaf, make_authority, sign_leaf, to_pem
from bowline_webhook.tls.serving import client_context

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = 365 * DAY


def authority(at: datetime = NOW, life: timedelta = YEAR) -> Authority:
    """Return a CA created then."""
    return make_authority(at, life)


def leaf_of(signer: Authority, *names: str, at: datetime = NOW, life: timedelta = 7 * DAY) -> Leaf:
    """Return a serving certificate signed then."""
    return sign_leaf(signer, names or ("localhost",), at, life)


def shake_hands(
    server: ssl.SSLContext,
    authority: x509.Certificate | bytes,
    name: str | None,
    caller: Path | None = None,
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
