"""Reconciles in progress: which key is at which step of which plugin, since when, and which calls take too long.

One record per reconcile, from the moment the queue hands out the key until it is done; a key has one at a time. Only
``tracker`` writes it. The overdue monitor and the debug pages read it meanwhile; metrics, history and traces get it
once, when it has ended.

The overdue monitor scans them once a second. It only reports: the Runner's timeouts end a plugin's call, the client's
timeouts end an API call. A threshold is a fraction of the timeout, so that a hanging call can be inspected. A call is
reported again each time its duration has doubled, which bounds the number of log lines.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from prometheus_client import Counter

from bowline.api.meta import ObjectKey
from bowline.runtime.clock import Clock

log = logging.getLogger(__name__)

# A reason may quote a whole reply of the API server.
MAX_WHY = 512
# Used in place of a plugin's name for the reconciler itself.
OWN = "bowline"
# The step of a reconcile while no plugin is called: it reads, writes, or waits for a rate limiter.
BETWEEN = "reconcile"

# The Runner's timeouts are 60, 60, 5, 10 and 10 s; post_bind should not be noticeable at all. Between plugins a
# reconcile waits for API calls of at most 60 s each, or for a rate limiter.
THRESHOLDS_S: Mapping[str, float] = MappingProxyType(
    {"pre_bind": 20.0, "bind": 10.0, "post_bind": 1.0, "rollback": 5.0, "release": 5.0, BETWEEN: 120.0}
)
SCAN_S = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """A finished call of a plugin; ``after_ms`` is its start, relative to the start of the reconcile."""

    plugin: str
    point: str
    code: str
    why: str
    after_ms: float
    ms: float


@dataclass(slots=True)
class CallInProgress:
    """A plugin's call in progress, and how often it was reported as overdue."""

    plugin: str
    point: str
    since: float
    reports: int = 0


@dataclass(slots=True)
class ReconcileInProgress:
    """A reconcile in progress: its decision and its steps so far."""

    key: ObjectKey
    began: datetime
    since: float
    attempt: str = ""
    decision: str = ""
    outcome: str = ""  # of the reconcile, a Code
    why: str = ""
    plugin: str = ""  # the plugin that returned the outcome
    trace: str = ""  # the traceparent that admission began, if any
    forgotten: bool = False  # the request needs nothing more
    calls: list[CallInProgress] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    attempt_end: tuple[str, float] | None = None  # the Code that the attempt ended with, and after how many seconds
    reports: int = 0

    @property
    def at(self) -> str:
        """The extension point that the reconcile is at."""
        return self.calls[0].point if self.calls else BETWEEN

    def view(self, now: float) -> dict[str, Any]:
        """Return the record for the debug pages."""
        return {
            "attempt": self.attempt,
            "decision": self.decision,
            "began": self.began,
            "seconds": round(now - self.since, 3),
            "at": [
                {"plugin": call.plugin, "point": call.point, "seconds": round(now - call.since, 3)}
                for call in self.calls
            ],
            "done": [f"{step.plugin}.{step.point}: {step.code}" for step in self.steps],
        }


def is_overdue(point: str, seconds: float, reports: int) -> bool:
    """Return whether to report a call of that duration, given the number of earlier reports. Pure."""
    threshold_s = THRESHOLDS_S[point]
    return seconds >= threshold_s * float(2**reports)


class OverdueMonitor:
    """Reports overdue calls in the log and in a counter by plugin and point."""

    def __init__(self, reconciles: Mapping[ObjectKey, ReconcileInProgress], overdue: Counter, clock: Clock) -> None:
        self._reconciles = reconciles
        self._overdue = overdue
        self._clock = clock

    async def run(self) -> None:
        """Scan until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            self.scan()

    def scan(self) -> None:
        """Check every reconcile in progress once."""
        now = self._clock.monotonic()
        for current in self._reconciles.values():
            for call in current.calls:
                self._check(current, call, now)
            if not current.calls and is_overdue(BETWEEN, now - current.since, current.reports):
                current.reports += 1
                self._report(current, OWN, BETWEEN, now - current.since)

    def call_ended(self, current: ReconcileInProgress, call: CallInProgress) -> None:
        """Check a call that has ended unreported: no scan can have seen one that blocked the event loop."""
        self._check(current, call, self._clock.monotonic())

    def _check(self, current: ReconcileInProgress, call: CallInProgress, now: float) -> None:
        if is_overdue(call.point, now - call.since, call.reports):
            call.reports += 1
            self._report(current, call.plugin, call.point, now - call.since)

    def _report(self, current: ReconcileInProgress, plugin: str, point: str, seconds: float) -> None:
        self._overdue.labels(plugin=plugin, point=point).inc()
        log.warning(
            "attempt is overdue",
            extra={
                "bindRequest": str(current.key),
                "attempt": current.attempt,
                "plugin": plugin,
                "point": point,
                "seconds": round(seconds, 1),
            },
        )
