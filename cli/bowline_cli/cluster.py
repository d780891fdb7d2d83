"""Access of commands to a cluster: options as kubectl's, one connection, one error with a remedy.

The client is the standard library's, not the processes': a command sends a few requests one after the other, and must
start within a fraction of a second. A ClusterError ends the command with exit status 2: nothing is known about the
cluster then.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, urlencode

from bowline.kube.errors import ApiError, InfrastructureError, NoJSON, Unreadable, from_response
from bowline.kube.unreadable import decode_json
from bowline_cli.kubeconfig import DEFAULT_FILE, ClusterError, ServerAccess, opened_access
from bowline_cli.terminal import report_error

# What a reply may be.
JSON = "application/json"
# What the API server replies in place of a result.
ERROR_REPLIES: Final = (ApiError, InfrastructureError)
EXIT_UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An HTTP response of the API server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Api:
    """A client of one API server, over one connection that is kept; not for several threads."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
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
        connection = self._access.connection
        may_repeat = connection.sock is not None and method == "GET"
        headers = {"Accept": accept, "User-Agent": "bowline", **self._access.headers}
        headers |= {"Content-Type": JSON} if body is not None else {}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = ApiAnswer(response.status, dict(response.headers), response.read())
        except (OSError, HTTPException) as error:
            connection.close()
            if may_repeat and not isinstance(error, TimeoutError):
                return self.send(method, path, body, accept)
            raise self._unreachable(str(error)) from error
        if answer.status >= 500 and "text/plain" in answer.headers.get("Content-Type", ""):
            raise self._unreachable(answer.body.decode(errors="replace").strip())  # kubectl's reply, not the server's
        self._date = answer.headers.get("Date") or ""
        return answer

    def _unreachable(self, reason: str) -> ClusterError:
        remedy = "check the server, or choose another one with --kubeconfig or --context"
        return ClusterError(f"the API server {self.server} cannot be reached ({reason}); {remedy}")


def add_cluster_options(parser: argparse.ArgumentParser, *, is_namespaced: bool = True) -> None:
    """Add ``--kubeconfig`` and ``--context``, and for a command about objects of a namespace ``--namespace``."""
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"default: $KUBECONFIG, else {DEFAULT_FILE}")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its current context")
    if is_namespaced:
        parser.add_argument("-n", "--namespace", metavar="NAME", help="default: that of the context")


def run_connected(options: argparse.Namespace, command: Callable[[Api], int]) -> int:
    """Run ``command`` with a client; returns its exit status, or reports a ClusterError and returns EXIT_UNKNOWN."""
    try:
        with connected(options) as api, reported_errors(api):
            return command(api)
    except ClusterError as error:
        report_error(str(error))
        return EXIT_UNKNOWN


@contextmanager
def connected(options: argparse.Namespace) -> Iterator[Api]:
    """Yield a client whose API server has replied once. Raises ClusterError.

    ``options``: those of ``add_cluster_options``. A pod without a kubeconfig uses its ServiceAccount.
    """
    with opened_access(options.kubeconfig, options.context) as access:
        api = Api(access)
        try:
            with reported_errors(api):
                call(api, "GET", "/version")
            access.logged_in()
            yield api
        finally:
            access.connection.close()


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
