"""Ends the processes of a local cluster when the program that started them has ended, for whatever reason.

Run as a script of its own, in its own session, with a pipe as standard input. The starter writes lines:

    watch PGID     end this process group
    forget PGID    it has ended
    remove PATH    a folder to delete at the end
    cgroups PATH   a file that lists cgroups to remove at the end, one path per line
    release        leave everything running and exit

The end of the pipe means that the starter has ended, also by SIGKILL, where no cleanup code of its own could run.
PR_SET_PDEATHSIG does not suffice: it fires when the *thread* that forked ends.

Standard library only and no import of the package: it must start in milliseconds.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

# Grace period of a process before it is killed.
_GRACE_S = 2.0
_CGROUPS_S = 10.0


def main() -> int:
    """Execute the orders until the pipe ends, then end the remaining processes."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    groups: list[int] = []
    folders: list[str] = []
    listings: list[str] = []
    for line in sys.stdin:
        order, _, value = line.rstrip("\n").partition(" ")
        if order == "watch":
            groups.append(int(value))
        elif order == "forget" and int(value) in groups:
            groups.remove(int(value))
        elif order == "remove":
            folders.append(value)
        elif order == "cgroups":
            listings.append(value)
        elif order == "release":
            return 0
    _end(groups)
    for listing in listings:
        remove_cgroups(Path(listing))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _end(groups: list[int]) -> None:
    """SIGTERM to all, newest first; SIGKILL after the grace period."""
    for group in reversed(groups):
        _send(group, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and any(_send(group, 0) for group in groups):
        time.sleep(0.05)
    for group in reversed(groups):
        _send(group, signal.SIGKILL)


def remove_cgroups(listing: Path) -> None:
    """Remove the listed cgroups with their descendants; waits for their last processes to end."""
    deadline = time.monotonic() + _CGROUPS_S
    paths = [Path(line) for line in listing.read_text().splitlines()] if listing.exists() else []
    while paths and time.monotonic() < deadline:
        for path in paths:
            # Children first. A cgroup with a running process is busy.
            for folder, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        paths = [path for path in paths if path.exists()]
        time.sleep(0.05)


def _send(group: int, number: int) -> bool:
    """Return False if the group no longer exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
