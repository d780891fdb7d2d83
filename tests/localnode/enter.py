"""Enters its own cgroups, then replaces itself by `unshare` around the first process.

Run as `python -m tests.localnode.enter DATA_FOLDER PORT`. The socket on which the API server is reached
from outside is opened here, in the host's network namespace; `boot` accepts on it from inside.
"""

import os
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.flags import LOOPBACK, Layout

_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One cgroup to create. `parent` is the caller's own in that hierarchy."""

    parent: Path
    path: Path
    has_cpus: bool


def main(argv: list[str]) -> None:
    """Never returns."""
    layout = Layout(Path(argv[0]))
    # Read completely before moving: each move changes the file.
    node_cgroups = cgroups(Path("/proc/self/cgroup").read_text(), f"bowline-node-{uuid.uuid4().hex[:8]}")
    # Written before they exist, so that the watchdog removes them whenever this process is killed.
    layout.cgroups.write_text("".join(f"{cgroup.path}\n" for cgroup in node_cgroups))
    for cgroup in node_cgroups:
        cgroup.path.mkdir()
        if cgroup.has_cpus:
            # Empty in a new cgroup of version 1, which no process can enter then.
            for file in ("cpuset.cpus", "cpuset.mems"):
                (cgroup.path / file).write_text((cgroup.parent / file).read_text())
        (cgroup.path / "cgroup.procs").write_text(str(os.getpid()))
    listener = socket.create_server((LOOPBACK, int(argv[1])), backlog=512)
    listener.set_inheritable(True)
    boot = [sys.executable, "-m", "tests.localnode.boot", argv[0], str(listener.fileno())]
    # As process 1 the shell reaps orphans; it ends with `boot`, and the kernel kills the rest.
    init = ["bash", "-c", 'trap "exit 0" TERM; "$@" & wait $!', "init", *boot]
    namespaces = ["--net", "--mount", "--propagation=private", "--cgroup", "--pid", "--uts", "--ipc"]
    os.execvp("unshare", ["unshare", *namespaces, "--fork", "--kill-child", *init])  # noqa: S606 - arguments of our own, no shell wanted


def cgroups(memberships: str, name: str) -> list[Cgroup]:
    """Return one cgroup per hierarchy, below the caller's. memberships: the text of /proc/self/cgroup."""
    node_cgroups = []
    for line in memberships.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        parent = _folder(hierarchy, controllers) / path.lstrip("/")
        node_cgroups.append(Cgroup(parent, parent / name, "cpuset" in controllers.split(",")))
    return node_cgroups


def _folder(hierarchy: str, controllers: str) -> Path:
    if hierarchy == "0":
        unified_mount = _MOUNT / "unified"
        return unified_mount if unified_mount.is_dir() else _MOUNT
    return _MOUNT / controllers.removeprefix("name=")


if __name__ == "__main__":
    main(sys.argv[1:])
