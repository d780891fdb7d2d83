"""The CA of the API server's certificate is rotated while a process runs."""

from pathlib import Path

import pytest

from bowline.api.meta import ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.errors import CredentialsError, NoResponse
from bowline.kube.reflector import Reflector
from bowline.kube.resources import CONFIGMAPS, Selection
from bowline.localcluster.certs import LocalAuthority
from bowline.localcluster.kubeconfig import api_server
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import DropBefore
from bowline.testing.fault_proxy.rules import FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.kube.test_reflector import running


async def test_a_rotated_cluster_ca_is_trusted_by_the_running_process(
    administrator: Path, proxy: FaultProxy, namespace: str, tmp_path: Path
) -> None:
    """First both CAs are trusted, then the API server has a certificate of the new CA; all connections are closed."""
    token_file = api_server(administrator).token_file
    assert token_file is not None
    (tmp_path / "token").write_bytes(token_file.read_bytes())

    def publish(*authorities: bytes) -> None:
        (tmp_path / "ca.crt").write_bytes(b"".join(authorities))

    old = proxy.ca_pem
    publish(old)
    access = load_access(ApiServer(proxy.url, tmp_path / "token", tmp_path / "ca.crt"))
    async with KubeClient(access) as client:
        await client.list(CONFIGMAPS, namespace)
        proxy.rotate_authority()
        publish(old, proxy.ca_pem)
        # The connection is closed, as in a restart of the API server.
        proxy.add(FaultRule(DropBefore(), nth=1))
        with pytest.raises(NoResponse):
            await client.list(CONFIGMAPS, namespace)
        await client.create(CONFIGMAPS, namespace, configmap("written"))
        async with running(Reflector(client, Selection(CONFIGMAPS, namespace))) as reflector:
            assert ObjectKey(namespace, "written") in reflector.store
    # After the old CA is withdrawn, it is no longer trusted.
    publish(proxy.ca_pem)
    assert access.read_authorities()
    assert access.context is not None
    assert len(access.context.get_ca_certs()) == 1


def test_an_unreadable_ca_file_keeps_the_trusted_cas(tmp_path: Path) -> None:
    """As while the file is being written."""
    first_pem, second_pem = (LocalAuthority(name).pem for name in ("one", "two"))
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(first_pem)
    access = load_access(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=tmp_path)
    before = access.context
    for content in (second_pem[: len(second_pem) // 2], b"", b"\xff"):
        (tmp_path / "ca.crt").write_bytes(content)
        with pytest.raises(CredentialsError):
            access.read_authorities()
        assert access.context is before
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(CredentialsError):
        access.read_authorities()
    (tmp_path / "ca.crt").write_bytes(second_pem)
    assert access.read_authorities()
    assert access.context is not before
    assert not access.read_authorities()
