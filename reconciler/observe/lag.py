"""The lag of the BindRequest watch, measured with this process's own writes, so that no clocks are compared.

The reply to a write contains the resourceVersion that the watch will deliver; until then the cache is known to be
that old. Only one write is followed at a time: enough to detect a hanging watch, at no cost per write. Versions are
compared as numbers, which the API does not guarantee: others are not measured, and no decision depends on the result.
"""

from collections.abc import Callable


class WatchLag:
    """Measures the lag. ``shown`` returns the version that the watch has delivered last."""

    def __init__(self, shown: Callable[[], str], monotonic: Callable[[], float]) -> None:
        self._shown = shown
        self._monotonic = monotonic
        self._followed: int | None = None
        self._since = 0.0

    def wrote(self, version: str) -> None:
        """Record that a write of this process is stored with that version."""
        if self._followed is not None and not self._caught_up(self._followed):
            return
        written = _number(version)
        if written is not None:
            self._followed, self._since = written, self._monotonic()

    def seconds(self) -> float:
        """Return for how long the followed write has not been delivered; 0 if it has."""
        if self._followed is None or self._caught_up(self._followed):
            self._followed = None
            return 0.0
        return self._monotonic() - self._since

    def _caught_up(self, written: int) -> bool:
        shown = _number(self._shown())
        # During a relist there is no version; the list that follows is newer.
        return shown is not None and shown >= written


def _number(version: str) -> int | None:
    """Return a resourceVersion as the number that it is on every API server backed by etcd; None if it is none."""
    return int(version) if version.isascii() and version.isdigit() else None
