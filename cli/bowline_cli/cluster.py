"""Access of commands to a cluster: options as kubectl's, one kind of request, one error with a remedy.

A pod without a kubeconfig uses its ServiceAccount. A ClusterError ends the command with exit status 2: nothing is
known about the cluster then.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from bowline.kube.errors import NoJSON, Unreadable
from bowline.kube.unreadable import decode_json
from bowline_cli.api import JSON, Api, ApiException, ClusterError
from bowline_cli.kubeconfig import SERVICE_ACCOUNT, load_kubeconfig, load_service_account
from bowline_cli.terminal import report_error

DEFAULT_FILE = "~/.kube/config"
EXIT_UNKNOWN = 2


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

    Raises ApiException for an error status, ClusterError without a response, Unreadable for one that is not decoded.
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
        raise ApiException(answer)
    return answer.body


def namespace_of(api: Api, options: argparse.Namespace) -> str:
    """Return ``--namespace``, else that of the context or of the pod."""
    return str(options.namespace or api.namespace)


@contextmanager
def reported_errors(api: Api) -> Iterator[None]:
    """Raise ClusterError for an ApiException or Unreadable that leaves the block."""
    try:
        yield
    except Unreadable as error:
        raise ClusterError(f"a reply of the API server {api.server} is not read: {error.message}") from error
    except ApiException as error:
        remedy = {401: "log in again", 403: "ask for this right"}.get(error.status, "try again")
        raise ClusterError(f"the API server {api.server} replies {error}; {remedy}") from error


def message_of(error: ApiException) -> str:
    """Return the code, reason and message of the API server's reply."""
    return str(error)
