"""A real control plane: no access to etcd, its commands, and that nothing is left behind."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.commands import main
from bowline.localcluster.errors import StartError
from bowline.localcluster.podsplace import has_pods_place
from bowline.localcluster.spec import ClusterSpec


def test_nobody_else_can_read_etcd_and_a_stop_leaves_no_process_and_no_folder() -> None:
    """etcd requires no credentials: it has no port, and its sockets are in a folder of the cluster's owner."""
    cluster = Cluster.start(ClusterSpec(controllers=(), kwok=False))
    processes = [cluster.process(name) for name in (Tool.ETCD, Tool.APISERVER)]
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    descriptors = Path(f"/proc/{processes[0].pid}/fd").iterdir()
    links = {str(descriptor.readlink()) for descriptor in descriptors if descriptor.is_symlink()}
    inodes = {name.removeprefix("socket:[").removesuffix("]") for name in links if name.startswith("socket:[")}
    assert inodes
    ports = [line for line in listening.splitlines()[1:] if len(line.split()) > 9 and line.split()[9] in inodes]
    assert ports == []
    assert cluster.layout.etcd_socket.is_socket()
    assert stat.S_IMODE(cluster.layout.etcd_socket.parent.stat().st_mode) == 0o700
    cluster.stop()
    assert not any(process.alive for process in processes)
    assert not cluster.data_dir.exists()
    cluster.stop()


def test_a_failed_start_reports_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    spec = ClusterSpec(apiserver_args=("--no-such-flag",), data_dir=tmp_path / "data")
    with pytest.raises(StartError, match="kube-apiserver ended with 1") as caught:
        Cluster.start(spec)
    assert "unknown flag: --no-such-flag" in str(caught.value)
    processes = Path("/proc").glob("[0-9]*/cmdline")
    assert not [path for path in processes if str(tmp_path).encode() in _read(path)]


_START = """
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
with Cluster.start(ClusterSpec(controllers=(), kwok=False)) as cluster:
    print(cluster.api.get("/version")["gitVersion"])
"""


@pytest.mark.skipif(not (has_pods_place() and shutil.which("ip")), reason="no namespaces are permitted, or no `ip`")
def test_a_cluster_starts_on_a_machine_without_a_network() -> None:
    isolated = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    result = subprocess.run([*isolated, sys.executable, "-c", _START], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout[:2]) == (0, "v1"), result.stderr


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_neither_up_nor_down_takes_a_folder_with_other_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", f"--data-dir={tmp_path}"]) == 3
    (tmp_path / "precious").write_text("data")
    for command, words in ((["down"], "nothing was removed"), (["up", "--no-chart"], "holds something else")):
        assert main([*command, f"--data-dir={tmp_path}"]) == 1
        assert words in capsys.readouterr().err
    assert (tmp_path / "precious").exists()
