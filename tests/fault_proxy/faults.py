"""What can go wrong with one request, or with one watch, as values.

A fault says what happens, a rule says when. ``then`` of some faults is called at exactly that point, on the proxy's
own thread and while the request stands still: a crash test kills its process there.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

Then = Callable[[], None]


def _nothing() -> None:
    """Stand-in for a test that has nothing to do at that point."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The request arrives later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DropBefore:
    """The request never reaches the API server; the connection is closed."""

    then: Then = _nothing


@dataclass(frozen=True, slots=True)
class LoseReply:
    """The API server has carried the request out; the connection is closed in place of its reply."""

    then: Then = _nothing


@dataclass(frozen=True, slots=True)
class AfterReply:
    """Nothing happens to the request; ``then`` is called when its reply has been handed to the connection."""

    then: Then


@dataclass(frozen=True, slots=True)
class Reset:
    """As DropBefore, but the connection is reset, not closed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The request never reaches the API server; this answer is given, in the form the API server gives it."""

    code: int
    retry_after_s: int | None = None
    message: str = "the fault proxy says so"


@dataclass(frozen=True, slots=True)
class Page:
    """The request never reaches the API server; a proxy's HTML page is the reply, without a metav1.Status."""

    code: int


@dataclass(slots=True)
class Gate:
    """Where requests stand until a test lets them go on."""

    _reached: threading.Event = field(default_factory=threading.Event)
    _opened: threading.Event = field(default_factory=threading.Event)

    def wait_reached(self, timeout_s: float) -> bool:
        """Wait for the first request; False if none came."""
        return self._reached.wait(timeout_s)

    def open(self) -> None:
        """Let everything through, now and later."""
        self._opened.set()

    def arrive(self) -> bool:
        """Stand before it; True if it is open. For the proxy."""
        self._reached.set()
        return self._opened.is_set()


@dataclass(frozen=True, slots=True)
class Hold:
    """The request is on its way until the gate opens. If its sender goes away meanwhile, it never arrives, or, where
    it ``outlives`` the sender, all the same: what is on the wire is not called back."""

    gate: Gate
    outlives: bool = False


@dataclass(frozen=True, slots=True)
class CutWatch:
    """After so many events the next one breaks off in the middle of its line."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class StallWatch:
    """After so many events nothing comes any more, and the connection stays open."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class ExpireWatch:
    """After so many events the watch ends with an ERROR event of code 410."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class FailWatch:
    """After so many events the watch ends with an ERROR event of this code."""

    after: int = 0
    code: int = 500


@dataclass(frozen=True, slots=True)
class RepeatEvents:
    """Every nth event comes twice."""

    every: int = 1


@dataclass(frozen=True, slots=True)
class SwapEvents:
    """Every nth event comes after the one that follows it, if one follows soon."""

    every: int = 2


RequestFault = Delay | DropBefore | LoseReply | AfterReply | Reset | Answer | Page | Hold
WatchFault = CutWatch | StallWatch | ExpireWatch | FailWatch | RepeatEvents | SwapEvents
Fault = RequestFault | WatchFault
