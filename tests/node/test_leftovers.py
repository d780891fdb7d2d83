"""A node whose program is killed with SIGKILL: no process, mount, network link, cgroup or sysctl change remains."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.localnode.settings import SYSCTLS
from tests.waiting import wait_until

pytestmark = pytest.mark.node

_LIMIT_S = 180
_PROGRAM = """
import time
from tests.localnode.cluster import start_node_cluster
with start_node_cluster():
    print("ready", flush=True)
    time.sleep(3600)
"""


def links() -> set[str]:
    """Return the machine's network links."""
    return {link.name for link in Path("/sys/class/net").iterdir()}


def sysctls() -> dict[str, str]:
    """Return the settings that a kubelet changes."""
    return {name: Path("/proc/sys", name).read_text() for name in SYSCTLS if Path("/proc/sys", name).exists()}


def processes(folder: Path, cgroups: list[Path]) -> set[int]:
    """Return the processes that name the folder in their command line or are in one of the cgroups."""
    pids = set()
    for cgroup in cgroups:
        for listing in cgroup.rglob("cgroup.procs"):
            try:
                pids |= {int(line) for line in listing.read_text().split()}
            except OSError:
                continue
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in command.read_bytes():
                pids.add(int(command.parent.name))
        except OSError:
            continue
    return pids - {os.getpid()}


def mounts(folder: Path) -> list[str]:
    """Return the mounts of the folder and below it."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the node's data, whose path is short: a path of a Unix socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="node-") as name:
        yield Path(name)


@pytest.mark.parametrize("moment", ["boot", "ready"])
def test_killed_program_leaves_nothing_of_its_node(folder: Path, moment: str) -> None:
    before = links(), sysctls()
    env = {**os.environ, "TMPDIR": str(folder)}

    def at(pattern: str) -> Path | None:
        return next(folder.glob(f"bowline-node-*/{pattern}"), None)

    with subprocess.Popen([sys.executable, "-c", _PROGRAM], env=env, stdout=subprocess.PIPE, text=True) as program:
        try:
            wait_until(lambda: (path := at("node/cgroups")) and path.read_text(), "the node's cgroups", _LIMIT_S)
            listing = at("node/cgroups")
            assert listing is not None
            cgroups = [Path(line) for line in listing.read_text().splitlines()]
            if moment == "ready":
                assert program.stdout is not None
                assert program.stdout.readline() == "ready\n"
                assert len(processes(folder, cgroups)) >= 8
        finally:
            program.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes(folder, cgroups), "the end of every process", _LIMIT_S)
    wait_until(lambda: not any(map(Path.exists, cgroups)) and not at(""), "the removal of folders", _LIMIT_S)
    assert mounts(folder) == []
    assert (links(), sysctls()) == before
