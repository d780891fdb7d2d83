"""Access to the cluster: server URL, its CA and the credentials.

Credentials are searched in this order: the given kubeconfig, the pod's ServiceAccount, the kubeconfig of the
environment (``$KUBECONFIG``, else ``~/.kube/config``). Proxy environment variables are ignored: a kubeconfig names
its proxy itself.

Kubeconfig files are read by the ``kubernetes`` package, which supports exec plugins and OIDC. It is imported only
when needed: it takes 21 MB and a third of a second, and a pod with its token in a file does not use it.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from bowline.kube.errors import CredentialsError
from bowline.kube.kubeconfig import KubeconfigCredentials
from bowline.kube.trust import Authorities, Trust
from bowline.runtime.backoff import Backoff
from bowline.runtime.clock import Clock, SystemClock
from bowline.runtime.tasks import wait_until

log = logging.getLogger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Between attempts to load missing credentials.
_BACKOFF = (timedelta(seconds=1), timedelta(seconds=30))
# The kubelet rotates at 80 % of a token's lifetime, which is at least ten minutes: a minute is early enough.
REREAD_AFTER_S = 60.0


class Credentials(Protocol):
    """Authentication of requests, kept up to date."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers for the next request."""

    @property
    def due(self) -> bool:
        """Return whether ``refresh`` is due; cheap, called before every request."""

    async def refresh(self, *, is_rejected: bool = False) -> bool:
        """Reload the credentials and return whether they have changed.

        ``is_rejected``: the API server does not accept the present ones. Raises CredentialsError if none loads.
        """


class TokenFileCredentials:
    """A ServiceAccount's bearer token in a file that is rotated externally, for example by the kubelet."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._headers: Mapping[str, str] = {}
        self._read()

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def due(self) -> bool:
        return self._clock.monotonic() >= self._reread_at

    async def refresh(self, *, is_rejected: bool = False) -> bool:
        """Read the file again if it is due or the token was rejected; return whether the token has changed."""
        return self._read() if is_rejected or self.due else False

    def _read(self) -> bool:
        self._reread_at = self._clock.monotonic() + REREAD_AFTER_S
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{self._path}: cannot be read ({error}); mount the pod's token") from error
        if not token:
            raise CredentialsError(f"{self._path}: is empty; mount the pod's ServiceAccount token")
        before, self._headers = self._headers, {"Authorization": f"Bearer {token}"}
        return before != self._headers


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How to connect to one cluster."""

    server: str  # a URL without a trailing slash
    credentials: Credentials
    trust: Trust | None = None  # None: plain HTTP
    server_name: str | None = None  # in the server's certificate, if it is not the URL's host
    proxy: str | None = None


async def load_access(
    kubeconfig: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Clock | None = None,
) -> ClusterAccess:
    """Find and load the credentials. Raises CredentialsError, which names the file and the remedy."""
    clock = clock or SystemClock()
    if kubeconfig is not None:
        return await load_kubeconfig([kubeconfig], clock)
    if environ.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return await load_in_cluster(environ, service_account, clock)
    return await load_kubeconfig(default_kubeconfig_paths(environ), clock)


async def wait_for_access(
    kubeconfig: Path | None, stop: asyncio.Event, on_missing: Callable[[str], None]
) -> ClusterAccess | None:
    """Load credentials, retrying until it succeeds; None if ``stop`` is set first.

    ``on_missing`` is called with each failure's message, for a readiness probe.
    """
    backoff = Backoff(*_BACKOFF)
    while not stop.is_set():
        try:
            return await load_access(kubeconfig)
        except CredentialsError as error:
            on_missing(str(error))
            delay = backoff.next_delay(_BACKOFF[0] / 2)
            log.warning("no credentials yet", extra={"error": str(error), "again_s": delay.total_seconds()})
            await wait_until(stop, delay)
    return None


def default_kubeconfig_paths(environ: Mapping[str, str]) -> list[Path]:
    """Return the kubeconfig paths that kubectl uses."""
    paths = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return paths or [Path.home() / ".kube" / "config"]


async def load_in_cluster(environ: Mapping[str, str], service_account: Path, clock: Clock) -> ClusterAccess:
    """Load the pod's ServiceAccount. Token and CA are rotated in place; the token is read again every minute."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    authority = service_account / "ca.crt"

    async def authorities() -> Authorities:
        return Authorities(read_pem(authority))

    trust = Trust(authorities)
    try:
        await trust.load()
    except CredentialsError as error:
        raise CredentialsError(f"{authority}: {error}; mount the pod's ServiceAccount token") from error
    return ClusterAccess(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=TokenFileCredentials(service_account / "token", clock),
        trust=trust,
    )


async def load_kubeconfig(paths: list[Path], clock: Clock) -> ClusterAccess:
    """Load one kubeconfig, or several merged as kubectl does. Raises CredentialsError."""
    credentials = KubeconfigCredentials(paths, clock)
    kubeconfig = await credentials.load()
    trust = None
    if kubeconfig.server.startswith("https:"):

        async def authorities() -> Authorities:
            now = await credentials.reread()
            return Authorities(read_pem(Path(now.authority)) if now.authority else None, now.verify)

        trust = Trust(authorities, credentials.load_client_cert)
        try:
            await trust.load()
        except CredentialsError as error:
            raise CredentialsError(
                f"{credentials.where}: its certificates cannot be used ({error}); renew the kubeconfig"
            ) from error
    return ClusterAccess(kubeconfig.server, credentials, trust, kubeconfig.server_name, kubeconfig.proxy)


def read_pem(path: Path) -> str:
    """Return the certificates in a file. Raises CredentialsError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"cannot be read ({error})") from error
