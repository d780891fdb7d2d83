"""Access of commands to a cluster: options as kubectl's, one kind of request, one error with a remedy.

A kubeconfig is read by the `kubernetes` package, the extra `kubeconfig`; a pod without one
uses the product's own client, because the image lacks that package (decision 186). ``bowline lint`` imports neither.
A ClusterError ends the command with exit status 2: nothing is known about the cluster then.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from bowline.kube.errors import CredentialsError
from bowline.kube.kubeconfig import check_files
from bowline_cli.api import Api, ApiAnswer, ApiException, ClusterError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_FILE = "~/.kube/config"
EXIT_UNKNOWN = 2


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
            from bowline_cli.kubeconfig import KubeconfigApi  # noqa: PLC0415 - an extra, which pods do not have

            api = KubeconfigApi(files, options.context)
        else:
            from bowline_cli.pod import PodApi  # noqa: PLC0415 - only pods need it

            api = PodApi()
    except CredentialsError as error:
        raise ClusterError(str(error)) from error
    except ModuleNotFoundError as error:
        if error.name not in ("kubernetes", "urllib3"):
            raise
        text = f"a kubeconfig needs the Python package {error.name}: run pip install kubernetes"
        raise ClusterError(text) from error
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


def _exchange(api: Api, method: str, path: str, body: object, **query: str | int) -> ApiAnswer:
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
    from bowline_cli.kubeconfig import namespace_of_context  # noqa: PLC0415 - an extra, which pods do not have

    return namespace_of_context(files, options.context)


@contextmanager
def reported_errors(api: Api) -> Iterator[None]:
    """Raise ClusterError for an ApiException that leaves the block."""
    try:
        yield
    except ApiException as error:
        remedy = "log in again" if error.status == 401 else "try again"
        raise ClusterError(f"the API server {api.server} replies {error}; {remedy}") from error


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
