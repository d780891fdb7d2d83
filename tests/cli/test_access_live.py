"""How commands reach a cluster, by a real kubectl: its errors have a remedy, and it ends with the command."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from bowline_cli import kubeconfig as access
from bowline_cli.cluster import EXIT_UNKNOWN, add_cluster_options, connected, namespace_of, run_connected
from bowline_cli.kubeconfig import ClusterError
from bowline_cli.reader import Reader
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("kubectl_in_path")
FREE_ADDRESS = "https://127.0.0.1:1"


def kubeconfig(folder: Path, **change: Any) -> Path:
    """A file with two contexts of a server that does not answer."""
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": f"of-{name}"}} for name in "ab"]
    document = {
        "clusters": [{"name": "c", "cluster": {"server": FREE_ADDRESS}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": contexts,
        "current-context": "a",
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(document | change))
    return file


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_cluster_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        pytest.param(None, [], "config: is not usable (", id="no file"),
        pytest.param({"clusters": 1}, [], "config: is not usable (", id="no kubeconfig"),
        pytest.param({}, ["--context=z"], "config: is not usable (cannot locate context z); pass", id="no context"),
        pytest.param({}, [], f"the API server {FREE_ADDRESS} cannot be reached (dial tcp", id="no server"),
    ],
)
def test_what_is_wrong_is_reported_once_and_nothing_runs(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, Any] | None,
    arguments: list[str],
    message: str,
) -> None:
    file = tmp_path / "config" if change is None else kubeconfig(tmp_path, **change)
    options = parse(f"--kubeconfig={file}", *arguments)
    assert run_connected(options, lambda api: pytest.fail("the command ran")) == EXIT_UNKNOWN
    captured = capfd.readouterr()
    assert message in captured.err
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(("arguments", "expectation"), [([], "team"), (["-n", "x"], "x")])
def test_the_file_of_the_environment_and_the_namespace(
    bare_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expectation: str
) -> None:
    file = tmp_path / "config"
    document = yaml.safe_load(bare_cluster.kubeconfig.read_text())
    document["contexts"][0]["context"]["namespace"] = "team"
    file.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{file}")
    options = parse(*arguments)
    with connected(options) as api:
        assert namespace_of(api, options) == expectation


HELD = """
import argparse, sys
from bowline_cli.cluster import connected
with connected(argparse.Namespace(kubeconfig=sys.argv[1], context=None)) as api:
    print(api._access.connection._path, flush=True)
    sys.stdin.read()
"""


def test_a_command_that_is_killed_leaves_no_kubectl(bare_cluster: Cluster) -> None:
    command = [sys.executable, "-c", HELD, str(bare_cluster.kubeconfig)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        socket = Path(process.stdout.readline().strip())
        assert socket.parent.stat().st_mode & 0o077 == 0
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not socket.parent.exists(), "the folder of the socket is gone, after kubectl")


def test_a_path_that_kubectl_refuses_by_default_is_read(bare_cluster: Cluster) -> None:
    with connected(parse(f"--kubeconfig={bare_cluster.kubeconfig}")) as api:
        assert Reader(api).get("/api/v1/namespaces/pods/pods/exec") is None


class BehindPath(BaseHTTPRequestHandler):
    """An API server whose address has a path, as those behind a management server; its other pages are HTML."""

    def do_GET(self) -> None:
        is_api = self.path == "/clusters/a/version"
        body = b"{}" if is_api else b"<html>down</html>"
        self.send_response(200 if is_api else 503)
        self.send_header("Content-Type", "application/json" if is_api else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def origin() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), BehindPath) as http_server:
        thread = Thread(target=http_server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()


def test_the_path_of_a_servers_address_precedes_each_request(
    origin: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, status in (("/clusters/a", 0), ("/clusters/b", EXIT_UNKNOWN)):
        file = kubeconfig(tmp_path, clusters=[{"name": "c", "cluster": {"server": f"{origin}{path}"}}])
        assert run_connected(parse(f"--kubeconfig={file}"), lambda _: 0) == status
    error = capfd.readouterr().err
    assert "replies 503: the reply has no Kubernetes Status" in error
    assert "html" not in error


def test_a_login_may_take_longer_than_a_reply(
    bare_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a reply may take less time than the start of kubectl's plugin does."""
    monkeypatch.setattr(access, "READ_TIMEOUT_S", 0.001)
    document = yaml.safe_load(bare_cluster.kubeconfig.read_text())
    version = "client.authentication.k8s.io/v1"
    token = Path(document["users"][0]["user"]["tokenFile"]).read_text().strip()
    answer = tmp_path / "answer"
    answer.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}))
    plugin = {"apiVersion": version, "command": "cat", "args": [str(answer)], "interactiveMode": "Never"}
    file = kubeconfig(tmp_path, **document | {"users": [{**document["users"][0], "user": {"exec": plugin}}]})
    with connected(parse(f"--kubeconfig={file}")) as api, pytest.raises(ClusterError, match="timed out"):
        api.send("GET", "/api/v1/pods?watch=true", None)
