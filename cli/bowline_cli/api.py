"""The client of all commands: one connection to an API server, and the errors of a request.

It is the standard library's, not the processes' client: a command sends a few requests one after the other, and must
start within a fraction of a second. ``access`` says where the server is and who the user is.
"""

import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit

from bowline.kube.errors import from_response

# In seconds: to connect, and to read. A create waits for all admission webhooks, up to 30 s.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 40
# What a reply may be.
JSON = "application/json"


class ClusterError(Exception):
    """The cluster cannot be reached, or its API server gives no decision. The message states the remedy."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """An API server, and the user's identity.

    - ``server``: the URL without a trailing slash.
    - ``namespace``: that of the context or of the pod.
    - ``headers``: authentication of each request; ``impersonation``: further headers, some of them several times.
    - ``tls``: with the client certificate, if the user has one; None: plain HTTP.
    - ``server_name``: in the server's certificate; empty: the host of the URL.
    - ``proxy``: URL of an HTTP proxy, with the user's credentials for it; empty: none.
    """

    server: str
    namespace: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = field(default="", repr=False)
    impersonation: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An HTTP response of the API server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ApiException(Exception):  # noqa: N818 - the name that clients of Kubernetes give it
    """A response that is not 2xx. ``causes``: of its Status, which has fields."""

    def __init__(self, answer: ApiAnswer) -> None:
        error = from_response(answer.status, answer.headers, answer.body)
        super().__init__(str(error))
        self.status = answer.status
        self.causes = error.status.causes if error.status is not None else ()


class _TlsConnection(HTTPSConnection):
    """A connection whose server is verified by another name than that of its URL."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, server_name: str) -> None:
        super().__init__(host, port, timeout=CONNECT_TIMEOUT_S, context=tls)
        self._tls, self._server_name = tls, server_name

    def connect(self) -> None:
        HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


class Api:
    """A client of one API server, over one connection that is kept; not for several threads."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        self._connection: HTTPConnection | None = None
        self._date = ""

    @property
    def server(self) -> str:
        """The address, for messages."""
        return self._access.server

    @property
    def namespace(self) -> str:
        """The namespace of the context or of the pod."""
        return self._access.namespace

    @property
    def now(self) -> datetime:
        """The API server's time, as of its last reply: the clock of the user's machine may be wrong."""
        return parsedate_to_datetime(self._date) if self._date else datetime.now(UTC)

    def send(self, method: str, path: str, body: bytes | None, accept: str = JSON) -> ApiAnswer:
        """Send a request, with an encoded path and JSON as body; raises ClusterError without a response.

        A read is sent again over a new connection if the server has closed the kept one.
        """
        is_kept = self._connection is not None
        try:
            return self._exchange(method, path, body, accept)
        except (OSError, HTTPException) as error:
            self.close()
            if not is_kept or method != "GET" or isinstance(error, TimeoutError):
                raise unreachable(self.server, error) from error
        try:
            return self._exchange(method, path, body, accept)
        except (OSError, HTTPException) as error:
            self.close()
            raise unreachable(self.server, error) from error

    def _exchange(self, method: str, path: str, body: bytes | None, accept: str) -> ApiAnswer:
        if self._connection is None:
            self._connection = self._connect()
        headers = [("Accept", accept), ("User-Agent", "bowline"), *self._access.headers.items()]
        if body is not None:
            headers += [("Content-Type", JSON), ("Content-Length", str(len(body)))]
        self._connection.putrequest(method, urlsplit(self.server).path + path)
        for name, value in (*headers, *self._access.impersonation):
            self._connection.putheader(name, value.encode())
        self._connection.endheaders(body)
        response = self._connection.getresponse()
        self._date = response.headers.get("Date") or ""
        return ApiAnswer(response.status, dict(response.headers), response.read())

    def _connect(self) -> HTTPConnection:
        url, tls = urlsplit(self.server), self._access.tls
        host, port = url.hostname or "", url.port or (443 if tls is not None else 80)
        proxy = urlsplit(self._access.proxy)
        target = (proxy.hostname, proxy.port or 80) if proxy.hostname else (host, port)
        connection = (
            HTTPConnection(*target, timeout=CONNECT_TIMEOUT_S)
            if tls is None
            else _TlsConnection(*target, tls, self._access.server_name or host)
        )
        if proxy.hostname:
            connection.set_tunnel(host, port, _proxy_credentials(proxy))
        connection.connect()
        connection.sock.settimeout(READ_TIMEOUT_S)
        return connection

    def close(self) -> None:
        """Close the connection; a later request opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _proxy_credentials(proxy: SplitResult) -> Mapping[str, str]:
    """Return the header for the credentials in the URL of a proxy; none without them."""
    if not proxy.username:
        return {}
    text = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(text.encode()).decode()}"}


def unreachable(server: str, cause: object) -> ClusterError:
    """Return the error of a request without a response."""
    remedy = "check the server, or choose another one with --kubeconfig or --context"
    return ClusterError(f"the API server {server} cannot be reached ({cause}); {remedy}")
