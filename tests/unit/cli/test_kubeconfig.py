"""What is read from kubeconfig files, as kubectl reads them, and from a pod's account."""

import base64
import json
import ssl
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline_cli.cluster import Api
from bowline_cli.kubeconfig import ClusterError, ServerAccess, load_kubeconfig, load_service_account
from bowline_webhook.tls.ca import to_pem
from tests.unit.webhook.tls import authority

SERVER = "https://api.example:6443"
CA = to_pem([authority().certificate]).decode()
EXEC_VERSION = "client.authentication.k8s.io/v1"


def document(user: dict[str, Any], cluster: dict[str, Any] | None = None, **change: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
        **change,
    }


def load(folder: Path, *documents: dict[str, Any], context: str | None = None) -> ServerAccess:
    paths = [folder / str(number) for number in range(len(documents))]
    for path, content in zip(paths, documents, strict=True):
        path.write_text(yaml.safe_dump(content))
    return load_kubeconfig(paths, context)


def plugin(*lines: str, **change: Any) -> dict[str, Any]:
    script = "\n".join(("import json, os", *lines))
    return {"exec": {"apiVersion": EXEC_VERSION, "command": sys.executable, "args": ["-c", script], **change}}


def credential(status: str) -> str:
    return f"print(json.dumps({{'apiVersion': '{EXEC_VERSION}', 'kind': 'ExecCredential', 'status': {status}}}))"


@pytest.mark.parametrize(
    ("user", "header"),
    [
        pytest.param({"token": "t"}, "Bearer t", id="a token"),
        pytest.param({"tokenFile": "token", "token": "old"}, "Bearer of-file", id="a token file precedes"),
        pytest.param({"username": "u", "password": "p"}, "Basic dTpw", id="a password"),
        pytest.param({"auth-provider": {"name": "oidc", "config": {"id-token": "oidc"}}}, "Bearer oidc",
            id="an ID token"),
        pytest.param(plugin(credential("{'token': os.environ['T']}"), env=[{"name": "T", "value": "e"}]), "Bearer e",
            id="a plugin"),
        pytest.param(plugin("info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])",
            credential("{'token': info['spec']['cluster']['server']}"), provideClusterInfo=True), f"Bearer {SERVER}",
            id="a plugin that is given the cluster"),
    ],
)  # fmt: skip
def test_the_users_credentials(tmp_path: Path, user: dict[str, Any], header: str) -> None:
    (tmp_path / "token").write_text("of-file\n")
    assert load(tmp_path, document(user)).headers == {"Authorization": header}


@pytest.mark.parametrize(
    ("user", "message"),
    [
        pytest.param({}, "gives no token and no client certificate", id="nothing"),
        pytest.param({"tokenFile": "absent"}, "tokenFile: ", id="no token file"),
        pytest.param({"client-certificate-data": "%"}, "client-certificate: ", id="no base64"),
        pytest.param({"client-certificate-data": base64.b64encode(b"x").decode(), "client-key-data": "eA=="},
            "its certificates cannot be used", id="no certificate"),
        pytest.param(plugin("raise SystemExit(3)"), "gives no credentials: ", id="a plugin that fails"),
        pytest.param(plugin("print('hello')"), "gives no credentials: ", id="a plugin that prints no JSON"),
        pytest.param(plugin("print('{}')"), "gives no credentials: ", id="a plugin without a status"),
        pytest.param(plugin(command="/no/such", installHint="get it"), "does not exist; get it", id="no plugin"),
        pytest.param(plugin(apiVersion="v0"), "apiVersion 'v0' is none of", id="a plugin of another version"),
    ],
)  # fmt: skip
def test_unusable_credentials_are_one_error_with_the_file_and_the_remedy(
    tmp_path: Path, user: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        load(tmp_path, document(user))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / '0'}: ")
    assert "pass a valid file with --kubeconfig" in str(caught.value)


IMPERSONATION = {
    "as": "jané",
    "as-uid": "7",
    "as-groups": ["dev", "ops"],
    "as-user-extra": {"example.com/scope": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("user", "message"),
    [
        pytest.param({"as-groups": ["dev"]}, "require a user in `as`", id="groups without a user"),
        pytest.param({"as": "jane", "as-groups": "dev"}, "as-groups must be a list", id="groups that are no list"),
        pytest.param({"as": "jane", "as-user-extra": ["x"]}, "an object of lists", id="values without keys"),
        pytest.param({"as": "jane", "as-user-extra": {"x": "y"}}, "an object of lists", id="a value that is no list"),
        pytest.param({"as": "jane\nX: y"}, "Impersonate-User would have control characters", id="a second header"),
        pytest.param({"token": "t\n"}, "Authorization would have control characters", id="a token with a newline"),
    ],
)
def test_headers_that_cannot_be_sent_are_an_error(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        load(tmp_path, document({"token": "t", **user}))


@pytest.mark.parametrize("server", ["api:6443", "https://", "https://api:port"])
def test_a_server_is_an_url(tmp_path: Path, server: str) -> None:
    with pytest.raises(ClusterError, match="must be an http or https URL"):
        load(tmp_path, document({"token": "t"}, {"server": server}))


@pytest.mark.parametrize(
    ("server", "exceptions", "proxy"),
    [
        ("https://api.corp.example:6443", "", "http://proxy:3128"),
        ("http://api.corp.example:6443", "", ""),
        ("https://api.corp.example:6443", "other.example,.corp.example", ""),
        ("https://10.1.2.3:6443", "corp.example, 10.0.0.0/8", ""),
        ("https://11.1.2.3:6443", "10.0.0.0/8", "http://proxy:3128"),
        ("https://[fd00::1]:6443", "fd00::/8", ""),
        ("https://api.corp.example:6443", "*", ""),
        ("https://localhost:6443", "", ""),
        ("https://127.0.0.2:6443", "", ""),
    ],
)
def test_a_server_has_the_proxy_of_the_environment_as_with_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, exceptions: str, proxy: str
) -> None:
    for name, value in (("HTTPS_PROXY", "proxy:3128"), ("NO_PROXY", exceptions)):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, value)
    assert load(tmp_path, document({"token": "t"}, {"server": server})).proxy == proxy
    content = document({"token": "t"}, {"server": server, "proxy-url": "http://own:1"})
    assert load(tmp_path, content).proxy == "http://own:1"


@pytest.mark.parametrize("proxy", ["https://u:secret@p", "socks5://u:secret@p:1080", "p:3128", "http://p:x"])
def test_a_proxy_of_another_scheme_is_refused_and_its_password_is_not_shown(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(ClusterError, match="proxy-url must be an http URL") as caught:
        load(tmp_path, document({"token": "t"}, {"proxy-url": proxy}))
    assert "secret" not in str(caught.value)


def test_of_several_files_the_first_entry_counts_and_missing_ones_are_ignored(tmp_path: Path) -> None:
    second = document({"token": "second"}, {"tls-server-name": "kube", "proxy-url": "http://proxy:3128"})
    second["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "u", "namespace": "team"}})
    access = load(tmp_path, {"users": [{"name": "u", "user": {"token": "first"}}]}, second, context="y")
    assert access.headers == {"Authorization": "Bearer first"}
    assert (access.namespace, access.server_name, access.proxy) == ("team", "kube", "http://proxy:3128")
    assert load_kubeconfig([tmp_path / "absent", tmp_path / "1"], None).namespace == "default"


def test_the_servers_certificate_is_verified_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    ca = base64.b64encode(CA.encode()).decode()
    trusting = load(tmp_path, document({"token": "t"}, {"certificate-authority-data": ca})).tls
    assert trusting is not None
    assert (trusting.verify_mode, trusting.check_hostname) == (ssl.CERT_REQUIRED, True)
    insecure = load(tmp_path, document({"token": "t"}, {"insecure-skip-tls-verify": True})).tls
    assert insecure is not None
    assert insecure.verify_mode == ssl.CERT_NONE


def test_a_pod_uses_its_account(tmp_path: Path) -> None:
    for name, text in (("token", "t\n"), ("namespace", "team"), ("ca.crt", CA)):
        (tmp_path / name).write_text(text)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = load_service_account(environment, tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "team")
    assert access.headers == {"Authorization": "Bearer t"}
    (tmp_path / "token").unlink()
    with pytest.raises(ClusterError, match="mount the pod's ServiceAccount token"):
        load_service_account(environment, tmp_path)


class Closing(BaseHTTPRequestHandler):
    """Answers each request, and closes the connection without saying so in the first reply."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        headers = sorted((name, value) for name, value in self.headers.items() if name.startswith("Impersonate"))
        proxy_credentials = getattr(self.server, "credentials", None)
        if proxy_credentials:
            headers.append(("Proxy-Authorization", proxy_credentials))
        body = json.dumps({"path": self.path, "accept": self.headers["Accept"], "headers": headers}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def do_CONNECT(self) -> None:
        """Act as a proxy that is the server, too: answer the request in the tunnel."""
        self.server.credentials = self.headers["Proxy-Authorization"]  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.close_connection = False

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a server that closes each connection."""
    http_server = HTTPServer(("127.0.0.1", 0), Closing)
    thread = threading.Thread(target=http_server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http_server.server_port}"
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def test_a_read_is_repeated_over_a_new_connection_when_the_kept_one_is_closed(server: str) -> None:
    api = Api(ServerAccess(f"{server}/prefix", "default"))
    for _ in range(3):
        answer = api.send("GET", "/version", None)
        assert json.loads(answer.body) == {"path": "/prefix/version", "accept": "application/json", "headers": []}
    assert api.now.tzinfo is not None
    api.close()


def test_requests_are_sent_as_the_user_whom_the_file_impersonates(tmp_path: Path, server: str) -> None:
    api = Api(load(tmp_path, document({"token": "t", **IMPERSONATION}, {"server": server})))
    assert json.loads(api.send("GET", "/version", None).body)["headers"] == [
        ["Impersonate-Extra-example.com%2Fscope", "a"],
        ["Impersonate-Extra-example.com%2Fscope", "b"],
        ["Impersonate-Group", "dev"],
        ["Impersonate-Group", "ops"],
        ["Impersonate-Uid", "7"],
        ["Impersonate-User", "jané".encode().decode("latin-1")],
    ]
    api.close()


def test_the_credentials_of_a_proxy_go_to_the_proxy(tmp_path: Path, server: str) -> None:
    proxy = server.replace("http://", "http://user:p%40ss@")
    cluster = {"server": "http://api.example:6443", "proxy-url": proxy}
    api = Api(load(tmp_path, document({"token": "t"}, cluster)))
    credentials = base64.b64encode(b"user:p@ss").decode()
    assert json.loads(api.send("GET", "/version", None).body)["headers"] == [
        ["Proxy-Authorization", f"Basic {credentials}"]
    ]
    api.close()
