"""Access of commands to a cluster: options as kubectl's, one connection, one error with a remedy.

The client is the standard library's, not the processes': a command sends a few requests one after the other, and must
start within a fraction of a second. A pod without a kubeconfig uses its ServiceAccount. A ClusterError ends the
command with exit status 2: nothing is known about the cluster then.
"""

import argparse
import json
import os
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from bowline.kube.errors import ApiError, InfrastructureError, NoJSON, Unreadable, from_response
from bowline.kube.unreadable import decode_json
from bowline_cli.kubeconfig import SERVICE_ACCOUNT, ClusterError, ServerAccess, load_kubeconfig, load_service_account
from bowline_cli.terminal import report_error

# In seconds: to connect, and to read. A create waits for all admission webhooks, up to 30 s.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 40
# What a reply may be.
JSON = "application/json"
# What the API server replies in place of a result.
ERROR_REPLIES: Final = (ApiError, InfrastructureError)
DEFAULT_FILE = "~/.kube/config"
EXIT_UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An HTTP response of the API server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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
        may_repeat = self._connection is not None and method == "GET"
        try:
            return self._exchange(method, path, body, accept)
        except (OSError, HTTPException) as error:
            self.close()
            if may_repeat and not isinstance(error, TimeoutError):
                return self.send(method, path, body, accept)
            remedy = "check the server, or choose another one with --kubeconfig or --context"
            raise ClusterError(f"the API server {self.server} cannot be reached ({error}); {remedy}") from error

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


def add_cluster_options(parser: argparse.ArgumentParser, *, is_namespaced: bool = True) -> None:
    """Add ``--kubeconfig`` and ``--context``, and for a command about objects of a namespace ``--namespace``."""
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"default: $KUBECONFIG, else {DEFAULT_FILE}")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its current context")
    if is_namespaced:
        parser.add_argument("-n", "--namespace", metavar="NAME", help="default: that of the context")


def run_connected(options: argparse.Namespace, command: Callable[[Api], int]) -> int:
    """Run ``command`` with a client; returns its exit status, or reports a ClusterError and returns EXIT_UNKNOWN."""
    try:
        with closing(connect(options)) as api, reported_errors(api):
            return command(api)
    except ClusterError as error:
        report_error(str(error))
        return EXIT_UNKNOWN


def connect(options: argparse.Namespace) -> Api:
    """Return a client whose API server has replied once. Raises ClusterError.

    ``options``: those of ``add_cluster_options``. A pod without a kubeconfig uses its ServiceAccount.
    """
    files = options.kubeconfig or os.environ.get("KUBECONFIG")
    default = Path(DEFAULT_FILE).expanduser()
    if not files and not options.context and not default.exists() and SERVICE_ACCOUNT.exists():
        access = load_service_account()
    else:
        access = load_kubeconfig([Path(f) for f in str(files or default).split(os.pathsep) if f], options.context)
    api = Api(access)
    with reported_errors(api):
        call(api, "GET", "/version")
    return api


def call(api: Api, method: str, path: str, body: object = None, **query: str | int) -> Any:
    """Return the API server's reply as JSON, as `kubectl get --raw` does.

    Raises one of ERROR_REPLIES for an error status, also for a reply that is not decoded; ClusterError without one.
    """
    try:
        return decode_json(call_raw(api, method, path, body, JSON, **query))
    except NoJSON as error:
        raise ClusterError(f"{api.server}{path}: {error}") from error


def call_raw(api: Api, method: str, path: str, body: object = None, accept: str = JSON, **query: str | int) -> bytes:
    """Return the API server's reply; raises as ``call``."""
    target = quote(path) + (f"?{urlencode(query)}" if query else "")
    answer = api.send(method, target, None if body is None else json.dumps(body).encode(), accept)
    if not 200 <= answer.status <= 299:
        raise from_response(answer.status, answer.headers, answer.body)
    return answer.body


def namespace_of(api: Api, options: argparse.Namespace) -> str:
    """Return ``--namespace``, else that of the context or of the pod."""
    return str(options.namespace or api.namespace)


@contextmanager
def reported_errors(api: Api) -> Iterator[None]:
    """Raise ClusterError for an error reply or Unreadable that leaves the block."""
    try:
        yield
    except Unreadable as error:
        raise ClusterError(f"a reply of the API server {api.server} is not read: {error.message}") from error
    except ERROR_REPLIES as error:
        remedy = {401: "log in again", 403: "ask for this right"}.get(error.code, "try again")
        raise ClusterError(f"the API server {api.server} replies {error}; {remedy}") from error
