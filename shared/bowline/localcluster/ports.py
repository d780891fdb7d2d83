"""Free ports on the loopback address.

They are drawn from below the kernel's ephemeral ports: a port that is only found free there is given to the next
outgoing connection of any process, often before its listener starts. A port cannot be reserved, so those drawn lately
are noted in a file that all programs of this user share: none is drawn twice before its listener has started, or
while it is restarted. Another user's process may still take one. Callers that start several processes at a time retry
with other ports if a log reports that the address is in use.
"""

import fcntl
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from errno import EADDRINUSE
from pathlib import Path

from bowline.localcluster.assets.cache import cache_root
from bowline.localcluster.errors import StartError
from bowline.localcluster.flags import LOOPBACK

TAKEN_WORDS = ("address already in use", "Address already in use")
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Linux' default, for machines that do not state theirs.
_FIRST_EPHEMERAL = 32768
# Below are the ports of well-known services, a kubelet's among them.
_FIRST = 12000
_TRIES = 200
# In the cache of binaries: a line for each port, with the time when it was drawn.
_NOTES = "ports"
# Longer than most clusters live. Afterwards a port is drawn again if nothing listens on it.
_NOTED_S = 3600.0


def free_ports(count: int) -> list[int]:
    """Return distinct ports: all are held open until the last is found.

    Raises StartError if none is found.
    """
    with _noted_ports() as noted, ExitStack() as reservations:
        return [_hold(reservations, noted) for _ in range(count)]


def free_port() -> int:
    """One port."""
    return free_ports(1)[0]


def ports_of_listeners() -> range:
    """Return the ports that no outgoing connection is given."""
    try:
        end = int(_EPHEMERAL.read_text().split()[0])
    except OSError:
        end = _FIRST_EPHEMERAL
    return range(_FIRST, end)


def reports_port_taken(log: str) -> bool:
    """Whether a process ended because its port was taken."""
    return any(words in log for words in TAKEN_WORDS)


@contextmanager
def _noted_ports() -> Iterator[set[int]]:
    """The ports that were drawn lately, for this program alone until the block ends; added ones are noted."""
    path = cache_root(os.environ) / _NOTES
    now = time.time()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        notes = path.open("a+", encoding="ascii")
    except OSError:
        yield set()  # without a cache that can be written, nothing is noted
        return
    with notes as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        # A program that is killed may leave an incomplete last line.
        entries = [fields for line in file.read().splitlines() if len(fields := line.split()) == 2]
        drawn_at = {int(port): float(at) for port, at in entries if 0 <= now - float(at) < _NOTED_S}
        ports = set(drawn_at)
        yield ports
        file.truncate(0)
        file.writelines(f"{port} {drawn_at.get(port, now)}\n" for port in ports)


def _hold(reservations: ExitStack, noted: set[int]) -> int:
    among = ports_of_listeners()
    for attempt in range(_TRIES):
        # Where ephemeral ports leave no room below them, the kernel draws one of these.
        port = random.choice(among) if among else 0  # noqa: S311 - not a secret
        if port in noted and attempt < _TRIES // 2:
            continue  # of a small range, one that was drawn before is better than none
        probe = reservations.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
        else:
            noted.add(port or int(probe.getsockname()[1]))
            return int(probe.getsockname()[1])
    raise StartError(
        f"no free port of {LOOPBACK} found from {among.start} to {among.stop - 1}: end what listens there"
    )
