"""Access to the cluster: server URL, its certificate authorities (CAs) and the credentials.

They come from the pod's ServiceAccount, or from a named API server with files for its CAs and the token. Both are
rotated while processes run: the kubelet replaces ca.crt, first with the old and the new CA, later with the new one
alone. Kubeconfig files are for the command ``bowline``; beside ``kubectl proxy`` a process needs no credentials.
Proxy environment variables are ignored.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from bowline.kube.errors import CredentialsError
from bowline.runtime.backoff import Backoff
from bowline.runtime.clock import Clock, SystemClock
from bowline.runtime.tasks import wait_until

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Between attempts to load missing credentials.
_BACKOFF = (timedelta(seconds=1), timedelta(seconds=30))
# The kubelet rotates at 80 % of a token's lifetime, which is at least ten minutes: a minute is early enough.
REREAD_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server and the files for it: a bearer token and the CAs, both read again when they are rotated.

    ``url``: https, or http without a token. ``ca_file`` None: the system's CAs.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


class Credentials:
    """A bearer token in a file that is rotated externally, for example by the kubelet. Without a file: none."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._headers: Mapping[str, str] = {}
        self._read()

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers for the next request."""
        return self._headers

    @property
    def due(self) -> bool:
        """Return whether ``refresh`` is due; cheap, called before every request."""
        return self._clock.monotonic() >= self._reread_at

    async def refresh(self, *, is_rejected: bool = False) -> bool:
        """Read the file again if it is due or the token was rejected; return whether the token has changed.

        Raises CredentialsError, and keeps the token.
        """
        return self._read() if is_rejected or self.due else False

    def _read(self) -> bool:
        self._reread_at = self._clock.monotonic() + REREAD_AFTER_S
        if self._path is None:
            return False
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{self._path}: cannot be read ({error}); mount the pod's token") from error
        if not token:
            raise CredentialsError(f"{self._path}: is empty; mount the pod's ServiceAccount token")
        before, self._headers = self._headers, {"Authorization": f"Bearer {token}"}
        return before != self._headers


class Trust:
    """The CAs that may sign the API server's certificate. ``ca_file`` None: the system's.

    ``context``: of the next connection; open ones keep theirs. Raises CredentialsError.
    """

    def __init__(self, ca_file: Path | None) -> None:
        self._ca_file = ca_file
        self._authorities = self._read()
        self.context = self._context_for(self._authorities)

    def load(self) -> bool:
        """Read the CAs again; return whether there is a new context. Raises CredentialsError and keeps the old one.

        A file that is read while being written causes such an error; the next load reads it completely.
        """
        authorities = self._read()
        if authorities == self._authorities:
            return False
        self.context, self._authorities = self._context_for(authorities), authorities
        return True

    def _read(self) -> str | None:
        try:
            return self._ca_file.read_text(encoding="utf-8") if self._ca_file is not None else None
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable(f"cannot be read ({error})") from error

    def _context_for(self, authorities: str | None) -> ssl.SSLContext:
        if authorities is not None and not authorities.strip():
            raise self._unusable("is empty")  # ssl treats an empty string as the system's CAs
        try:
            context = ssl.create_default_context(cadata=authorities)
        except (OSError, ssl.SSLError) as error:
            raise self._unusable(f"holds no usable certificate authority ({error})") from error
        # From Python 3.13 on, the default rejects CAs without an Authority Key Identifier, which many clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def _unusable(self, why: str) -> CredentialsError:
        return CredentialsError(f"{self._ca_file}: {why}; mount the pod's ServiceAccount token")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How to connect to one cluster."""

    server: str  # a URL without a trailing slash
    credentials: Credentials
    trust: Trust | None = None  # None: plain HTTP


async def load_access(
    server: ApiServer | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Clock | None = None,
) -> ClusterAccess:
    """Load the credentials for a named API server, or those of the pod.

    Raises CredentialsError, which names the file and the remedy.
    """
    if server is None:
        server = _in_cluster(environ, service_account)
    is_secure = urlsplit(server.url).scheme == "https"
    if is_secure and server.token_file is None:
        raise CredentialsError(f"{server.url}: without a token; pass --token-file")
    return ClusterAccess(
        server.url.rstrip("/"),
        Credentials(server.token_file, clock or SystemClock()),
        Trust(server.ca_file) if is_secure else None,
    )


async def wait_for_access(
    server: ApiServer | None, stop: asyncio.Event, on_missing: Callable[[str], None]
) -> ClusterAccess | None:
    """Load credentials, retrying until it succeeds; None if ``stop`` is set first.

    ``on_missing`` is called with each failure's message, for a readiness probe.
    """
    backoff = Backoff(*_BACKOFF)
    while not stop.is_set():
        try:
            return await load_access(server)
        except CredentialsError as error:
            on_missing(str(error))
            delay = backoff.next_delay(_BACKOFF[0] / 2)
            log.warning("no credentials yet", extra={"error": str(error), "again_s": delay.total_seconds()})
            await wait_until(stop, delay)
    return None


def _in_cluster(environ: Mapping[str, str], service_account: Path) -> ApiServer:
    """Return the API server of the pod's cluster; the kubelet rotates token and CA in place."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT") or "443"
    if not host:
        remedy = "pass --server, --token-file and --ca-file, or --server of `kubectl proxy`"
        raise CredentialsError(f"no API server is named, and this is no pod of a cluster; {remedy}")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ApiServer(url, service_account / "token", service_account / "ca.crt")
