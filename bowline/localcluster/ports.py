"""Free ports on the loopback address.

They are drawn from below the kernel's ephemeral ports: a port that is only found free there is given to the next
outgoing connection of any process, often before its listener starts. A port cannot be reserved, so another process
that draws the same one may still take it. Callers that start several processes at a time retry with other ports if a
log reports that the address is in use.
"""

import random
import socket
from contextlib import ExitStack
from errno import EADDRINUSE
from pathlib import Path

from bowline.localcluster.errors import StartError
from bowline.localcluster.flags import LOOPBACK

TAKEN_WORDS = ("address already in use", "Address already in use")
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Linux' default, for machines that do not state theirs.
_FIRST_EPHEMERAL = 32768
# Below are the ports of well-known services, a kubelet's among them.
_FIRST = 12000
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return distinct ports: all are held open until the last is found.

    Raises StartError if none is found.
    """
    with ExitStack() as reservations:
        return [_hold(reservations) for _ in range(count)]


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


def _hold(reservations: ExitStack) -> int:
    among = ports_of_listeners()
    for _ in range(_TRIES):
        # Where ephemeral ports leave no room below them, the kernel draws one of these.
        port = random.choice(among) if among else 0  # noqa: S311 - not a secret
        probe = reservations.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
        else:
            return int(probe.getsockname()[1])
    raise StartError(
        f"no free port of {LOOPBACK} found from {among.start} to {among.stop - 1}: end what listens there"
    )
