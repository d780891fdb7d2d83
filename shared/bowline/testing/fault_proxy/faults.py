"""Faults of one request, or of one watch, as values.

A fault defines what happens, a rule when. ``then`` of some faults is called at exactly that point, on the proxy's
thread and while the request is blocked: a crash test kills its process there.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Then = Callable[[], None]
FieldPath = tuple[str, ...]
# The identity of an object, without which the API server stores nothing.
_IDENTITY = ("apiVersion", "kind", "name", "namespace", "uid", "resourceVersion", "generateName")

# For the tests of plugins; the others are for Bowline's own.
__all__ = ["DropBefore", "FaultAnswer", "FaultGate", "Hold", "LoseReply"]


def _nothing() -> None:
    """Default for tests that need no callback at that point."""


@dataclass(frozen=True, slots=True)
class DropBefore:
    """The request never reaches the API server; the connection is closed."""

    then: Then = _nothing


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The API server has executed the request; the connection is closed instead of its reply."""

    then: Then = _nothing


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The API server gets another body, as from an admission policy: ``change`` is given the decoded one."""

    change: Callable[[dict[str, Any]], None]

    @classmethod
    def without(cls, path: FieldPath) -> "Rewrite":
        """Return the change of a policy that removes a field, where a body has it."""

        def change(body: Any) -> None:
            for key in path[:-1]:
                body = body.get(key) if isinstance(body, dict) else None
            if isinstance(body, dict):
                body.pop(path[-1], None)

        return cls(change)


def field_paths(body: Any, depth: int, prefix: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the path of each field that is set, to a depth; below it a part stands for the whole.

    Not the fields that identify an object: without them the API server stores nothing.
    """
    if isinstance(body, dict) and len(prefix) < depth:
        for key, value in body.items():
            if key not in _IDENTITY:
                yield from field_paths(value, depth, (*prefix, key))
    elif body is not None and prefix:
        yield prefix


@dataclass(frozen=True, slots=True)
class FaultAnswer:
    """The request never reaches the API server; the client gets this reply, in the API server's format."""

    code: int
    retry_after_s: int | None = None
    message: str = "an injected fault"


@dataclass(frozen=True, slots=True)
class Page:
    """The request never reaches the API server; the reply is a proxy's HTML page, not a metav1.Status."""

    code: int


@dataclass(slots=True)
class FaultGate:
    """Blocks requests until a test opens it."""

    _reached: threading.Event = field(default_factory=threading.Event)
    _opened: threading.Event = field(default_factory=threading.Event)

    def wait_reached(self, timeout_s: float) -> bool:
        """Wait for the first request; False on a timeout."""
        return self._reached.wait(timeout_s)

    def open(self) -> None:
        """Release all requests, current and later ones."""
        self._opened.set()

    def arrive(self) -> bool:
        """Return whether it is open, and record the arrival. For the proxy."""
        self._reached.set()
        return self._opened.is_set()


@dataclass(frozen=True, slots=True)
class Hold:
    """The request is delayed until the gate opens. If its client disconnects meanwhile, the request is dropped,
    unless it ``outlives`` the client: bytes that were sent cannot be recalled. ``lost``: of such a request, the gate
    that opens first, and ends the connection as the client's timeout does."""

    gate: FaultGate
    outlives: bool = False
    lost: FaultGate | None = None


@dataclass(frozen=True, slots=True)
class CutWatch:
    """After so many events the next one breaks off in the middle of its line."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class StallWatch:
    """After so many events no data follows, and the connection stays open."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class FailWatch:
    """After so many events the watch ends with an ERROR event of this code."""

    after: int = 0
    code: int = 500


RequestFault = DropBefore | LoseReply | Rewrite | FaultAnswer | Page | Hold
WatchFault = CutWatch | StallWatch | FailWatch
Fault = RequestFault | WatchFault
