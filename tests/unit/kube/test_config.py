"""Finding credentials, and reporting what is wrong with them."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from bowline.kube.config import REREAD_AFTER_S, ApiServer, load_access, wait_for_access
from bowline.kube.errors import CredentialsError
from bowline.localcluster.certs import LocalAuthority
from bowline.testing.clock import SteppedClock

STEP = timedelta(seconds=REREAD_AFTER_S)
URL = "https://127.0.0.1:6443"


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    """The files that the kubelet mounts."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token")
    (folder / "ca.crt").write_bytes(LocalAuthority().pem)
    return folder


def test_a_named_api_server_precedes_the_pods(service_account: Path) -> None:
    server = ApiServer(f"{URL}/", service_account / "token", service_account / "ca.crt")
    access = load_access(server, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, clock=SteppedClock())
    assert access.server == URL
    assert access.headers == {"Authorization": "Bearer pod-token"}
    assert access.context is not None
    assert access.context.cert_store_stats()["x509"] == 1
    assert access.context.check_hostname


def test_without_a_file_the_systems_authorities_are_trusted(service_account: Path) -> None:
    access = load_access(ApiServer(URL, service_account / "token"))
    assert access.context is not None
    assert not access.read_authorities(), "they are read once"


def test_a_token_is_read_again(service_account: Path) -> None:
    clock, token = SteppedClock(), service_account / "token"
    access = load_access(ApiServer(URL, token), clock=clock)
    token.write_text("second\n")
    assert not access.due
    clock.step(STEP)
    assert access.due
    access.read_token()
    assert not access.due
    headers = access.headers
    assert headers == {"Authorization": "Bearer second"}
    access.read_token()
    assert access.headers is headers, "unchanged"
    token.write_text("third\n")
    access.read_token()
    token.unlink()
    with pytest.raises(CredentialsError, match="token: cannot be read"):
        access.read_token()
    assert access.headers == {"Authorization": "Bearer third"}, "the old token may still be valid"


def test_in_a_pod_its_service_account_is_used(service_account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = load_access(environ=environ, service_account=service_account)
    assert access.server == "https://[fd00::1]:443"
    assert access.headers == {"Authorization": "Bearer pod-token"}


def test_outside_a_pod_the_flags_are_named() -> None:
    with pytest.raises(CredentialsError, match="pass --server, --token-file and --ca-file"):
        load_access(environ={"KUBECONFIG": "/home/me/.kube/config"})


@pytest.mark.parametrize(
    ("file", "content", "expectation"),
    [
        pytest.param("token", "", "token: is empty", id="an empty token"),
        pytest.param("token", "one\ntwo", "token: is no token", id="two tokens, of which no request could be made"),
        pytest.param("ca.crt", "nonsense", "ca.crt: holds no usable certificate authority", id="no certificate"),
    ],
)
def test_a_broken_service_account(service_account: Path, file: str, content: str, expectation: str) -> None:
    (service_account / file).write_text(content)
    with pytest.raises(CredentialsError, match=expectation):
        load_access(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=service_account)


@pytest.mark.looptime
async def test_credentials_written_late_are_awaited(tmp_path: Path) -> None:
    path, missing = tmp_path / "token", []

    def report(what: str) -> None:
        missing.append(what)
        if len(missing) == 3:
            path.write_text("secret")

    access = await wait_for_access(ApiServer(URL, path), asyncio.Event(), report)
    assert access is not None
    assert access.server == URL
    assert all(str(path) in what for what in missing)


@pytest.mark.looptime
async def test_a_stop_ends_the_wait_for_credentials(tmp_path: Path) -> None:
    stop = asyncio.Event()
    assert await wait_for_access(ApiServer(URL, tmp_path / "none"), stop, lambda _: stop.set()) is None
