"""Reports calls of plugins that take too long, by scanning the reconciles in progress once a second.

It only reports: the Runner's timeouts end a plugin's call, the client's timeouts end an API call. A threshold is a
fraction of the timeout, so that a hanging call can be inspected. A call is reported again each time its duration has
doubled, which bounds the number of log lines.
"""

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client import Counter

from reconciler.observe.reconciles import BETWEEN, OWN, CallInProgress, ReconcileInProgress
from shared.api.meta import ObjectKey
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

# The Runner's timeouts are 60, 60, 5 and 10 s; post_bind should not be noticeable at all. Between plugins a reconcile
# waits for API calls of at most 60 s each, or for a rate limiter.
THRESHOLDS_S: Mapping[str, float] = MappingProxyType(
    {"pre_bind": 20.0, "bind": 10.0, "post_bind": 1.0, "rollback": 5.0, BETWEEN: 120.0}
)
SCAN_S = 1.0


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
        """Check a call that has ended: no scan can have seen one that blocked the event loop."""
        if not call.reports:
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
