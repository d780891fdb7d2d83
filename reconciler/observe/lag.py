"""How far the watch of BindRequests is behind: measured by this process's own writes, so no clocks are compared.

A write's answer names the version that the watch will show; until it does, the store is known to be that old. One
write is followed at a time: enough to see a watch that hangs, and nothing to pay on the hot path. Versions are
compared as numbers, which an API server does not promise: what cannot be read so is not measured, and no decision
rests on it.
"""

from collections.abc import Callable


class WatchLag:
    """``shown`` is the version up to which the watch has come."""

    def __init__(self, shown: Callable[[], str], monotonic: Callable[[], float]) -> None:
        self._shown = shown
        self._monotonic = monotonic
        self._followed: int | None = None
        self._since = 0.0

    def wrote(self, version: str) -> None:
        """A write of ours is stored as that version."""
        if self._followed is not None and not self._caught_up(self._followed):
            return
        written = _number(version)
        if written is not None:
            self._followed, self._since = written, self._monotonic()

    def seconds(self) -> float:
        """Return since when the followed write has not been shown; 0 if it has."""
        if self._followed is None or self._caught_up(self._followed):
            self._followed = None
            return 0.0
        return self._monotonic() - self._since

    def _caught_up(self, written: int) -> bool:
        shown = _number(self._shown())
        # While the reflector lists anew there is no version; what it lists then will be newer.
        return shown is not None and shown >= written


def _number(version: str) -> int | None:
    """Return a resourceVersion as the number that it is on every API server backed by etcd."""
    return int(version) if version.isascii() and version.isdigit() else None
