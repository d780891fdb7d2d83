"""Where the API server is and who the user is: kubectl's own answer, or that of a pod's account.

`kubectl proxy` carries the requests over a socket that only the user may open: kubeconfig files, logins, certificates
and proxies are its work, and work here as they do there. It ends with the command, also when that is killed. A pod
without a kubeconfig uses its ServiceAccount: the image has no kubectl.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from threading import Thread
from typing import IO, cast

REMEDY = "pass a valid file with --kubeconfig, or set KUBECONFIG"
DEFAULT_FILE = "~/.kube/config"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# In seconds: a create waits for all admission webhooks, up to 30 s.
READ_TIMEOUT_S = 40
# In seconds, of the first request of a user with a plugin: it may ask for a login.
LOGIN_TIMEOUT_S = 300
# Ends kubectl and removes its folder as soon as this process has ended, however it did: then its input is closed.
_WATCHED = 'folder=$1; shift; "$@" & exec >/dev/null; cat; kill $! 2>/dev/null; rm -rf "$folder"'
# Of a message that kubectl logs for a request whose reply says the same.
_LOGGED = "Error while proxying request"


class ClusterError(Exception):
    """The cluster cannot be reached, or its API server gives no decision. The message states the remedy."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """An API server: its URL for messages, the namespace of the context or of the pod, a connection that is opened
    by the first request, and headers with the user's identity.
    """

    server: str
    namespace: str
    connection: HTTPConnection
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def logged_in(self) -> None:
        """Bound the requests after the first one, which may have waited for a login."""
        self.connection.timeout = READ_TIMEOUT_S
        if self.connection.sock is not None:
            self.connection.sock.settimeout(READ_TIMEOUT_S)


class _SocketConnection(HTTPConnection):
    """A connection to a local socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def opened_access(file: str | None, context: str | None) -> Iterator[ServerAccess]:
    """Yield the access of a context, None is the current one, of a kubeconfig, None is kubectl's default.

    Raises ClusterError.
    """
    is_given = file or context or "KUBECONFIG" in os.environ or Path(DEFAULT_FILE).expanduser().exists()
    if not is_given and SERVICE_ACCOUNT.exists():
        yield service_account()
        return
    options = [*([f"--kubeconfig={file}"] if file else []), *([f"--context={context}"] if context else [])]
    content = json.loads(_view(file or os.environ.get("KUBECONFIG") or DEFAULT_FILE, options))
    server = (content.get("clusters") or [{}])[0].get("cluster", {}).get("server", "")
    namespace = content["contexts"][0]["context"].get("namespace") or "default"
    user = (content.get("users") or [{}])[0].get("user") or {}
    with _proxy(options) as path:
        connection = _SocketConnection(path, LOGIN_TIMEOUT_S if user.get("exec") else READ_TIMEOUT_S)
        yield ServerAccess(server, namespace, connection)


def service_account(environment: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> ServerAccess:
    """Return the access of the pod's ServiceAccount. Raises ClusterError."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        token, namespace = ((folder / name).read_text("ascii").strip() for name in ("token", "namespace"))
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, ValueError) as error:
        raise ClusterError(f"{folder}: is not usable ({error}); mount the pod's ServiceAccount token") from error
    connection = HTTPSConnection(host, int(port), timeout=READ_TIMEOUT_S, context=tls)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ServerAccess(server, namespace, connection, {"Authorization": f"Bearer {token}"})


def _view(files: str, options: Sequence[str]) -> str:
    """Return the context that the options select, as JSON. Raises ClusterError with what kubectl says."""
    command = ["kubectl", *options, "config", "view", "--minify", "--output=json"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except OSError as error:
        raise ClusterError("kubectl is not in PATH, by which the cluster is reached; install it") from error
    except subprocess.CalledProcessError as error:
        text = " ".join(error.stderr.split()).removeprefix("error: ")
        raise ClusterError(f"{files}: is not usable ({text}); {REMEDY}") from error


@contextmanager
def _proxy(options: Sequence[str]) -> Iterator[Path]:
    """Yield the socket of a `kubectl proxy` that ends with the block."""
    folder = tempfile.mkdtemp(prefix="bowline-")  # only the user may enter it
    path = Path(folder, "socket")
    command = ["kubectl", *options, "proxy", f"--unix-socket={path}", "--reject-paths=^$", "--append-server-path"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHED, "sh", folder, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # an interrupt of the terminal ends this process, and that the shell
    )
    stdin, stdout, stderr = (cast(IO[str], pipe) for pipe in (process.stdin, process.stdout, process.stderr))
    Thread(target=_forward, args=(stderr,), daemon=True).start()
    try:
        with stdout:
            is_serving = stdout.readline()
        if not is_serving:
            raise ClusterError(f"kubectl proxy does not start; {REMEDY}")
        yield path
    finally:
        stdin.close()
        process.wait()


def _forward(lines: IO[str]) -> None:
    """Print what kubectl says, such as how to log in."""
    with lines:
        for line in lines:
            if _LOGGED not in line:
                sys.stderr.write(line)
