"""Requirements of a node on the machine: root, Linux namespaces and some commands (reads the host, changes
nothing).
"""

import os
import shutil
import sys
from pathlib import Path

# Debian's package for each command.
COMMANDS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "iptables": "iptables",
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "gcc": "gcc",
    "go": "golang",
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")


def missing_part() -> str | None:
    """Return why no node can be started on this machine, with the remedy; None if one can be."""
    if sys.platform != "linux":
        return f"a node needs Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "a node needs root: namespaces, mounts and cgroups are created"
    absent = sorted({package for command, package in COMMANDS.items() if shutil.which(command) is None})
    if cni_folder() is None:
        absent.append("containernetworking-plugins")
    if absent:
        return f"not installed: {', '.join(absent)}; install these packages"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "/sys/fs/cgroup is read-only; run in a container with writable cgroups, or on the machine itself"
    return None


def cni_folder() -> Path | None:
    """Return the folder that contains the required CNI plugins; None if there is none."""
    for folder in CNI_FOLDERS:
        if all((folder / plugin).is_file() for plugin in CNI_PLUGINS):
            return folder
    return None
