"""Access of commands to a cluster: options as kubectl's, the `kubernetes` package, one error with a remedy.

The package is an extra (``pip install 'bowline[kubeconfig]'``). ``bowline lint`` imports neither it nor this module.
A ClusterError ends the command with exit status 2: nothing is known about the cluster then.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration, VersionApi
from urllib3.exceptions import HTTPError

from bowline.shared.kube.errors import CredentialsError, from_response
from bowline.shared.kube.kubeconfig import REMEDY, check_files

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_FILE = "~/.kube/config"
# Of each call, in seconds: to connect, and to read. A create waits for all admission webhooks, up to 30 s.
REQUEST_TIMEOUT_S = (5, 40)
EXIT_UNKNOWN = 2


class ClusterError(Exception):
    """The cluster cannot be reached, or its API server gives no decision. The message states the remedy."""


def add_cluster_options(parser: argparse.ArgumentParser, namespace: str = "") -> None:
    """Add ``--kubeconfig``, ``--context`` and ``--namespace``; ``namespace`` is its default, else the context's."""
    default = f"default: {namespace or 'that of the context'}"
    parser.add_argument("--kubeconfig", metavar="FILE", help=f"default: $KUBECONFIG, else {DEFAULT_FILE}")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its current context")
    parser.add_argument("-n", "--namespace", default=namespace, metavar="NAME", help=default)


def run_connected(options: argparse.Namespace, command: Callable[[ApiClient], int]) -> int:
    """Run ``command`` with a client; returns its exit status, or reports a ClusterError and returns EXIT_UNKNOWN."""
    try:
        api = connect(options)
        with reported_errors(api):
            return command(api)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return EXIT_UNKNOWN


def connect(options: argparse.Namespace) -> ApiClient:
    """Return a client whose API server has replied once. Raises ClusterError.

    ``options``: those of ``add_cluster_options``. Pass ``_request_timeout=REQUEST_TIMEOUT_S`` to each call: the
    package has no default. A pod without a kubeconfig uses its ServiceAccount.
    """
    configuration = Configuration()
    configuration.retries = False  # the library logs each retry on standard error
    files = _kubeconfig(options)
    try:
        if files:
            check_files([Path(file) for file in files.split(os.pathsep) if file])
            config.load_kube_config(files, options.context, configuration, persist_config=False)  # type: ignore[no-untyped-call]
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except CredentialsError as error:
        raise ClusterError(str(error)) from error
    except Exception as error:  # the package raises arbitrary exceptions for what a file contains
        cause = str(error).removeprefix("Invalid kube-config file. ").strip() or type(error).__name__
        raise ClusterError(f"{files or SERVICE_ACCOUNT}: is not usable ({cause}); {REMEDY}") from error
    if configuration.host.startswith("https:") and not (configuration.api_key or configuration.cert_file):
        # The package logs the failure of an exec plugin and continues unauthenticated.
        raise ClusterError(f"{files}: gives no token and no client certificate for the context's user; {REMEDY}")
    api = ApiClient(configuration)
    with reported_errors(api):
        VersionApi(api).get_code(_request_timeout=REQUEST_TIMEOUT_S)
    return api


def call(api: ApiClient, method: str, path: str, body: object = None, **query: str | int) -> Any:
    """Return the API server's reply as JSON, as `kubectl get --raw` does. Raises the package's exceptions.

    The package's own API classes take up to a second to import, and convert objects of other versions with losses.
    """
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    request = api.param_serialize(
        method, quote(path), {}, list(query.items()), headers, body, auth_settings=["BearerToken"]
    )
    response = api.call_api(*request, _request_timeout=REQUEST_TIMEOUT_S)
    content = response.read()  # type: ignore[no-untyped-call]
    if not 200 <= response.status <= 299:
        raise ApiException(http_resp=response)
    return json.loads(content)


def namespace_of(options: argparse.Namespace) -> str:
    """Return ``--namespace``, else that of the context or of the pod, else ``default``. Call ``connect`` first."""
    if options.namespace:
        return str(options.namespace)
    files = _kubeconfig(options)
    if not files:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    contexts, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
    contexts = [context for context in contexts if context["name"] == options.context] or [current]
    return str(contexts[0]["context"].get("namespace") or "default")


@contextmanager
def reported_errors(api: ApiClient) -> Iterator[None]:
    """Raise ClusterError for an exception of the package that leaves the block."""
    server = api.configuration.host
    try:
        yield
    except ApiException as error:
        remedy = "log in again" if error.status == 401 else "try again"
        raise ClusterError(f"the API server {server} replies {message_of(error)}; {remedy}") from error
    except HTTPError as error:
        remedy = "check the server, or choose another one with --kubeconfig or --context"
        raise ClusterError(f"the API server {server} cannot be reached ({error}); {remedy}") from error


def message_of(error: ApiException) -> str:
    """Return the code, reason and message of the API server's reply."""
    return str(from_response(error.status, error.headers or {}, (error.body or "").encode()))


def _kubeconfig(options: argparse.Namespace) -> str:
    """Return the files, separated as in KUBECONFIG; empty in a pod without one."""
    files = options.kubeconfig or os.environ.get("KUBECONFIG")
    default = Path(DEFAULT_FILE).expanduser()
    if not files and not options.context and not default.exists() and SERVICE_ACCOUNT.exists():
        return ""
    return str(files or default)
