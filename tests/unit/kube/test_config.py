"""Finding credentials, and reporting what is wrong with them."""

import asyncio
import os
import stat
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bowline.kube.config import default_kubeconfig_paths, load_access, wait_for_access
from bowline.kube.errors import CredentialsError
from bowline.kube.kubeconfig import RELOAD_AFTER_S
from bowline.testing.clock import START, SteppedClock

STEP = timedelta(seconds=RELOAD_AFTER_S)


def kubeconfig(path: Path, user: Mapping[str, object], server: str = "https://127.0.0.1:6443") -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": dict(user)}],
            }
        )
    )
    return path


async def test_a_token_of_a_kubeconfig(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config", {"token": "secret"}), clock=SteppedClock())
    assert access.server == "https://127.0.0.1:6443"
    assert access.credentials.headers == {"Authorization": "Bearer secret"}
    assert access.trust is not None
    assert access.trust.context.check_hostname


async def test_kubeconfig_without_the_kubernetes_package_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in sys.modules makes the import fail as if the package were not installed.
    for name in ("kubernetes", "kubernetes.aio.config"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CredentialsError, match="package `kubernetes`, which is not installed"):
        await load_access(kubeconfig(tmp_path / "config", {"token": "secret"}), clock=SteppedClock())


async def test_a_token_file_of_a_kubeconfig_is_reread_after_a_rotation(tmp_path: Path) -> None:
    clock = SteppedClock()
    (tmp_path / "token").write_text("first\n")
    access = await load_access(kubeconfig(tmp_path / "config", {"tokenFile": "token"}), clock=clock)
    assert access.credentials.headers == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    assert not access.credentials.due
    assert await access.credentials.refresh() is False
    clock.step(STEP)
    assert access.credentials.due
    assert await access.credentials.refresh() is True
    assert access.credentials.headers == {"Authorization": "Bearer second"}
    (tmp_path / "token").write_text("third\n")
    assert await access.credentials.refresh(is_rejected=True) is True, "no wait for a rejected token"


def plugin(tmp_path: Path, expiry: str = "") -> dict[str, object]:
    """An exec plugin that returns token-1, token-2 and so on, a new one each time it runs."""
    script = tmp_path / "plugin"
    status = f'"token": "token-$n"{expiry}'
    script.write_text(
        f"""#!/bin/sh
n=$(($(cat {tmp_path}/runs 2>/dev/null || echo 0) + 1)); echo $n > {tmp_path}/runs
cat <<EOF
{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{{status}}}}}
EOF
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}


async def test_an_exec_plugin_without_an_expiry_runs_again_only_when_its_token_is_rejected(tmp_path: Path) -> None:
    clock = SteppedClock()
    access = await load_access(kubeconfig(tmp_path / "config", plugin(tmp_path)), clock=clock)
    assert access.credentials.headers == {"Authorization": "Bearer token-1"}
    clock.step(STEP)
    assert await access.credentials.refresh() is False
    assert access.credentials.headers == {"Authorization": "Bearer token-1"}
    assert await access.credentials.refresh(is_rejected=True) is True
    assert access.credentials.headers == {"Authorization": "Bearer token-2"}


@pytest.mark.parametrize(
    ("expiry", "token"),
    [
        pytest.param("2000-01-01T00:00:00Z", "token-2", id="an expired token is renewed"),
        pytest.param("2999-01-01T00:00:00Z", "token-1", id="a valid token is kept"),
    ],
)
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # of the kubernetes package
async def test_the_expiry_of_an_exec_plugins_token(tmp_path: Path, expiry: str, token: str) -> None:
    clock = SteppedClock()
    user = plugin(tmp_path, f', "expirationTimestamp": "{expiry}"')
    access = await load_access(kubeconfig(tmp_path / "config", user), clock=clock)
    clock.step(STEP)
    await access.credentials.refresh()
    assert access.credentials.headers == {"Authorization": f"Bearer {token}"}


async def test_a_failing_exec_plugin_is_not_taken_for_an_anonymous_user(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    with pytest.raises(CredentialsError, match="gives no token and no client certificate"):
        await load_access(kubeconfig(tmp_path / "config", user))


async def test_plain_http_needs_no_credentials(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config", {}, "http://127.0.0.1:8001/"))
    assert (access.server, access.trust, dict(access.credentials.headers)) == (
        "http://127.0.0.1:8001",
        None,
        {},
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(None, "does not exist", id="no file"),
        pytest.param("", "must hold a mapping", id="an empty file"),
        pytest.param("- a", "must hold a mapping", id="a list"),
        pytest.param("a: [", "is not YAML at line", id="no YAML"),
        pytest.param(b"\xff", "cannot be read", id="no text"),
        pytest.param("kind: Config", "current-context", id="no context"),
        pytest.param("current-context: x", "contexts", id="no contexts"),
        pytest.param("current-context: x\ncontexts: []", "x", id="an unknown context"),
        pytest.param("current-context: x\ncontexts: [7]", "is not usable", id="a context that is a number"),
    ],
)
async def test_an_invalid_kubeconfig_is_reported_with_the_error_and_the_remedy(
    tmp_path: Path, content: str | bytes | None, expected: str
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CredentialsError) as raised:
        await load_access(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert message.endswith("pass a valid file with --kubeconfig, or set KUBECONFIG")


@pytest.mark.parametrize(
    ("user", "server", "expected"),
    [
        pytest.param({}, "https://127.0.0.1:1", "gives no token", id="a user without credentials"),
        pytest.param({"tokenFile": "missing"}, "https://127.0.0.1:1", "missing", id="a token file that is not there"),
        pytest.param({"token": "t"}, "ftp://host", "server", id="a server of another protocol"),
        pytest.param({"token": "t"}, "https://", "server", id="a server without a host"),
        pytest.param(
            {"client-certificate-data": "bm9uc2Vuc2U=", "client-key-data": "bm9uc2Vuc2U="},
            "https://127.0.0.1:1",
            "certificates cannot be used",
            id="an invalid certificate",
        ),
    ],
)
async def test_credentials_that_cannot_work(
    tmp_path: Path, user: Mapping[str, object], server: str, expected: str
) -> None:
    path = kubeconfig(tmp_path / "config", user, server)
    with pytest.raises(CredentialsError) as raised:
        await load_access(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert expected in str(raised.value)


def authority() -> bytes:
    """A certificate authority that signs nothing."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(START).not_valid_after(START + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    """The files that the kubelet mounts."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token")
    (folder / "ca.crt").write_bytes(authority())
    return folder


async def test_in_a_pod_the_service_account_precedes_the_default_kubeconfig(service_account: Path) -> None:
    clock = SteppedClock()
    environ = {
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBECONFIG": "/does/not/exist",
    }
    access = await load_access(environ=environ, service_account=service_account, clock=clock)
    assert access.server == "https://[fd00::1]:443"
    assert access.credentials.headers == {"Authorization": "Bearer pod-token"}
    (service_account / "token").write_text("rotated")
    assert await access.credentials.refresh() is False
    clock.step(STEP)
    assert await access.credentials.refresh() is True
    assert access.credentials.headers == {"Authorization": "Bearer rotated"}
    (service_account / "token").unlink()
    clock.step(STEP)
    with pytest.raises(CredentialsError, match="token: cannot be read"):
        await access.credentials.refresh()
    assert access.credentials.headers == {"Authorization": "Bearer rotated"}, "the old token may still be valid"


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        pytest.param("token", "", "token: is empty", id="an empty token"),
        pytest.param("ca.crt", "nonsense", "ca.crt: holds no usable certificate authority", id="no certificate"),
    ],
)
async def test_a_broken_service_account(service_account: Path, file: str, content: str, expected: str) -> None:
    (service_account / file).write_text(content)
    with pytest.raises(CredentialsError, match=expected):
        await load_access(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=service_account)


def test_the_usual_kubeconfigs() -> None:
    assert default_kubeconfig_paths({"KUBECONFIG": f"/a{os.pathsep}{os.pathsep}/b"}) == [Path("/a"), Path("/b")]
    assert default_kubeconfig_paths({}) == [Path.home() / ".kube" / "config"]


@pytest.mark.looptime
async def test_credentials_written_late_are_awaited(tmp_path: Path) -> None:
    path, missing = tmp_path / "config", []

    def report(what: str) -> None:
        missing.append(what)
        if len(missing) == 3:
            kubeconfig(path, {"token": "secret"})

    access = await wait_for_access(path, asyncio.Event(), report)
    assert access is not None
    assert access.server == "https://127.0.0.1:6443"
    assert all(str(path) in what for what in missing)


@pytest.mark.looptime
async def test_a_stop_ends_the_wait_for_credentials(tmp_path: Path) -> None:
    stop = asyncio.Event()
    assert await wait_for_access(tmp_path / "none", stop, lambda _: stop.set()) is None
