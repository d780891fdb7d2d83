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


class ClusterAccess:
    """An API server, and the CAs and the token as they were last read. Raises CredentialsError, and keeps both.

    ``headers``: of the next request; another object when the token has changed. ``context``: of the next connection,
    open ones keep theirs; None: plain HTTP.
    """

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self.server = server.url.rstrip("/")  # also of paths
        self.headers: Mapping[str, str] = {}
        self.context: ssl.SSLContext | None = None
        self.files = server
        self._clock = clock
        self._authorities: str | None = None
        self._is_secure = urlsplit(server.url).scheme == "https"
        if self._is_secure and server.token_file is None:
            raise CredentialsError(f"{server.url}: without a token; pass --token-file")
        self.read_token()
        self.read_authorities()

    @property
    def due(self) -> bool:
        """Return whether the files should be read again; cheap, called before every request."""
        return self._clock.monotonic() >= self._reread_at

    def read_token(self) -> None:
        """Read the token again."""
        self._reread_at = self._clock.monotonic() + REREAD_AFTER_S
        path = self.files.token_file
        if path is None:
            return
        try:
            token = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, f"cannot be read ({error})") from error
        if not token:
            raise _unusable(path, "is empty")
        if not token.isprintable():  # no header of a request can have it
            raise _unusable(path, "is no token: it has a line break or another unprintable character")
        headers = {"Authorization": f"Bearer {token}"}
        if headers != self.headers:
            self.headers = headers

    def read_authorities(self) -> bool:
        """Read the CAs again; return whether there is a new context.

        A file that is read while being written causes an error; the next time it is read completely.
        """
        if not self._is_secure:
            return False
        path, authorities = self.files.ca_file, None
        try:
            authorities = path.read_text(encoding="utf-8") if path is not None else None
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, f"cannot be read ({error})") from error
        if self.context is not None and authorities == self._authorities:
            return False
        if authorities is not None and not authorities.strip():
            raise _unusable(path, "is empty")  # ssl treats an empty string as the system's CAs
        try:
            context = ssl.create_default_context(cadata=authorities)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(path, f"holds no usable certificate authority ({error})") from error
        # From Python 3.13 on, the default rejects CAs without an Authority Key Identifier, which many clusters have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self.context, self._authorities = context, authorities
        return True


def _unusable(path: Path | None, why: str) -> CredentialsError:
    return CredentialsError(f"{path}: {why}; mount the pod's ServiceAccount token")


def load_access(
    server: ApiServer | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Clock | None = None,
) -> ClusterAccess:
    """Load the credentials for a named API server, or those of the pod.

    Raises CredentialsError, which names the file and the remedy.
    """
    return ClusterAccess(server or _in_cluster(environ, service_account), clock or SystemClock())


async def wait_for_access(
    server: ApiServer | None, stop: asyncio.Event, on_missing: Callable[[str], None]
) -> ClusterAccess | None:
    """Load credentials, retrying until it succeeds; None if ``stop`` is set first.

    ``on_missing`` is called with each failure's message, for a readiness probe.
    """
    backoff = Backoff(*_BACKOFF)
    while not stop.is_set():
        try:
            return load_access(server)
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
