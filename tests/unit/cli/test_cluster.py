"""Access of commands to a cluster without a binary: a pod's account, and a connection that its server closes."""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bowline_cli.cluster import Api
from bowline_cli.kubeconfig import ClusterError, ServerAccess, service_account
from bowline_cli.main import main
from bowline_webhook.tls.ca import to_pem
from tests.unit.webhook.tls import authority


def test_a_pod_uses_its_account(tmp_path: Path) -> None:
    ca = to_pem([authority().certificate]).decode()
    for name, text in (("token", "t\n"), ("namespace", "team"), ("ca.crt", ca)):
        (tmp_path / name).write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = service_account(environment, tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "team")
    assert access.headers == {"Authorization": "Bearer t"}
    (tmp_path / "token").unlink()
    with pytest.raises(ClusterError, match="mount the pod's ServiceAccount token"):
        service_account(environment, tmp_path)


@pytest.mark.parametrize("is_a_file", [False, True])
def test_without_a_kubectl_that_runs_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_a_file: bool
) -> None:
    if is_a_file:
        (tmp_path / "kubectl").touch(0o600)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["explain", "--kubeconfig=x"]) == 2
    assert capsys.readouterr().err == "kubectl is not in PATH, by which the cluster is reached; install it\n"


class Closing(BaseHTTPRequestHandler):
    """Answers each request, and closes the connection without saying so in the first reply."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "accept": self.headers["Accept"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that closes each connection."""
    http_server = HTTPServer(("127.0.0.1", 0), Closing)
    thread = threading.Thread(target=http_server.serve_forever)
    thread.start()
    yield http_server.server_port
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def test_a_read_is_repeated_over_a_new_connection_when_the_kept_one_is_closed(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port)
    api = Api(ServerAccess("", "default", connection))
    for _ in range(3):
        answer = api.send("GET", "/version", None)
        assert json.loads(answer.body) == {"path": "/version", "accept": "application/json"}
    assert api.now.tzinfo is not None
    connection.close()
