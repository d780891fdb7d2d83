"""Access of commands to a cluster: options as kubectl's, one kind of request, one error with a remedy.

A kubeconfig is read by the `kubernetes` package, an extra (``pip install 'bowline[kubeconfig]'``); a pod without one
uses the product's own client, because the image lacks that package (decision 186). ``bowline lint`` imports neither.
A ClusterError ends the command with exit status 2: nothing is known about the cluster then.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from shared.kube.errors import CredentialsError, from_response
from shared.kube.kubeconfig import check_files

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_FILE = "~/.kube/config"
# Of each call, in seconds: to connect, and to read. A create waits for all admission webhooks, up to 30 s.
REQUEST_TIMEOUT_S = (5, 40)
EXIT_UNKNOWN = 2


class ClusterError(Exception):
    """The cluster cannot be reached, or its API server gives no decision. The message states the remedy."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response of the API server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Api(Protocol):
    """A client of one API server."""

    @property
    def server(self) -> str:
        """The address, for messages."""
        ...

    def send(self, method: str, path: str, body: object) -> Answer:
        """Send a request, with an encoded path; raises ClusterError without a response."""
        ...


class ApiException(Exception):  # noqa: N818 - the name that clients of Kubernetes give it
    """A response that is not 2xx."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(from_response(answer.status, answer.headers, answer.body)))
        self.status = answer.status


def add_cluster_options(parser: argparse.ArgumentParser, namespace: str = "") -> None:
    """Add ``--kubeconfig``, ``--context`` and ``--namespace``; ``namespace`` is its default, else the context's."""
    default = f"default: {namespace or 'that of the context'}"
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"default: $KUBECONFIG, else {DEFAULT_FILE}")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its current context")
    parser.add_argument("-n", "--namespace", default=namespace, metavar="NAME", help=default)


def run_connected(options: argparse.Namespace, command: Callable[[Api], int]) -> int:
    """Run ``command`` with a client; returns its exit status, or reports a ClusterError and returns EXIT_UNKNOWN."""
    try:
        api = connect(options)
        with reported_errors(api):
            return command(api)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return EXIT_UNKNOWN


def connect(options: argparse.Namespace) -> Api:
    """Return a client whose API server has replied once. Raises ClusterError.

    ``options``: those of ``add_cluster_options``. A pod without a kubeconfig uses its ServiceAccount.
    """
    files = _kubeconfig(options)
    api: Api
    try:
        if files:
            check_files([Path(file) for file in files.split(os.pathsep) if file])
            from cli.kubeconfig import KubeconfigApi  # noqa: PLC0415 - an extra, which pods do not have

            api = KubeconfigApi(files, options.context)
        else:
            from cli.pod import PodApi  # noqa: PLC0415 - only pods need it

            api = PodApi()
    except CredentialsError as error:
        raise ClusterError(str(error)) from error
    with reported_errors(api):
        call(api, "GET", "/version")
    return api


def call(api: Api, method: str, path: str, body: object = None, **query: str | int) -> Any:
    """Return the API server's reply as JSON, as `kubectl get --raw` does.

    Raises ApiException for an error status, ClusterError without a response.
    """
    return json.loads(_exchange(api, method, path, body, **query).body)


def server_time(api: Api) -> datetime:
    """Return the API server's time: the clock of the user's machine may be wrong."""
    return parsedate_to_datetime(_exchange(api, "GET", "/version", None).headers["Date"])


def _exchange(api: Api, method: str, path: str, body: object, **query: str | int) -> Answer:
    target = quote(path) + (f"?{urlencode(query)}" if query else "")
    answer = api.send(method, target, body)
    if not 200 <= answer.status <= 299:
        raise ApiException(answer)
    return answer


def namespace_of(options: argparse.Namespace) -> str:
    """Return ``--namespace``, else that of the context or of the pod, else ``default``. Call ``connect`` first."""
    if options.namespace:
        return str(options.namespace)
    files = _kubeconfig(options)
    if not files:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    from cli.kubeconfig import namespace_of_context  # noqa: PLC0415 - an extra, which pods do not have

    return namespace_of_context(files, options.context)


@contextmanager
def reported_errors(api: Api) -> Iterator[None]:
    """Raise ClusterError for an ApiException that leaves the block."""
    try:
        yield
    except ApiException as error:
        remedy = "log in again" if error.status == 401 else "try again"
        raise ClusterError(f"the API server {api.server} replies {error}; {remedy}") from error


def unreachable(server: str, cause: object) -> ClusterError:
    """Return the error of a request without a response."""
    remedy = "check the server, or choose another one with --kubeconfig or --context"
    return ClusterError(f"the API server {server} cannot be reached ({cause}); {remedy}")


def message_of(error: ApiException) -> str:
    """Return the code, reason and message of the API server's reply."""
    return str(error)


def _kubeconfig(options: argparse.Namespace) -> str:
    """Return the files, separated as in KUBECONFIG; empty in a pod without one."""
    files = options.kubeconfig or os.environ.get("KUBECONFIG")
    default = Path(DEFAULT_FILE).expanduser()
    if not files and not options.context and not default.exists() and SERVICE_ACCOUNT.exists():
        return ""
    return str(files or default)
