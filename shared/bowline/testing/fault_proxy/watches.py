"""The effect of a fault on the lines of a watch. Pure: lines in; lines out and how the watch continues."""

from dataclasses import dataclass
from enum import Enum

import orjson

from bowline.testing.fault_proxy.faults import (
    CutWatch,
    ExpireWatch,
    FailWatch,
    RepeatEvents,
    StallWatch,
    SwapEvents,
    WatchFault,
)


class Next(Enum):
    """How the watch continues."""

    GO_ON = "go on"
    BREAK = "break the connection"
    CLOSE = "end the response properly"
    STALL = "send no more data"


@dataclass(frozen=True, slots=True)
class WatchStep:
    """The bytes to send, and how the watch continues."""

    data: bytes
    then: Next = Next.GO_ON


class WatchScript:
    """One watch with one fault; without one, lines are unchanged."""

    def __init__(self, fault: WatchFault | None) -> None:
        self._fault = fault
        self._events = 0
        self._held_back = b""

    @property
    def holds(self) -> bool:
        """Whether an event waits for the next one; ``flush`` sends it if none arrives."""
        return bool(self._held_back)

    def flush(self) -> WatchStep:
        """Return the held event."""
        data, self._held_back = self._held_back, b""
        return WatchStep(data)

    def feed(self, line: bytes) -> WatchStep:
        """Process the next line, without its line end."""
        self._events += 1
        step = WatchStep(line + b"\n")
        match self._fault:
            case CutWatch(after) if self._events > after:
                step = WatchStep(line[: len(line) // 2], Next.BREAK)
            case StallWatch(after) if self._events > after:
                step = WatchStep(b"", Next.STALL)
            case ExpireWatch(after) if self._events > after:
                step = WatchStep(expired_event(), Next.CLOSE)
            case FailWatch(after, code) if self._events > after:
                step = WatchStep(error_event(code, "an injected fault"), Next.CLOSE)
            case RepeatEvents(every) if self._events % every == 0:
                step = WatchStep(step.data * 2)
            case SwapEvents() if self._held_back:
                step = WatchStep(step.data + self.flush().data)
            case SwapEvents(every) if self._events % every == 0:
                self._held_back, step = step.data, WatchStep(b"")
        return step


def status_body(code: int, message: str) -> bytes:
    """Return a metav1.Status like the API server's."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }
    return orjson.dumps(status)


def expired_event() -> bytes:
    """Return the ERROR event of an expired resourceVersion."""
    return error_event(410, "too old resource version")


def error_event(code: int, message: str) -> bytes:
    """Return the API server's ERROR event with this code."""
    return b'{"type":"ERROR","object":' + status_body(code, message) + b"}\n"


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
