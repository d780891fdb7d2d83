"""Free ports on the loopback address.

A port found free may be taken before it is used. Callers start their process and retry with other ports if its log
reports that the address is in use; a port cannot be reserved.
"""

import socket
from contextlib import ExitStack

from localcluster.flags import LOOPBACK

TAKEN_WORDS = ("address already in use", "Address already in use")


def free_ports(count: int) -> list[int]:
    """Return distinct ports: all are held open until the last is found."""
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            probe.bind((LOOPBACK, 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def free_port() -> int:
    """One port."""
    return free_ports(1)[0]


def says_port_taken(log: str) -> bool:
    """Whether a process ended because its port was taken."""
    return any(words in log for words in TAKEN_WORDS)
