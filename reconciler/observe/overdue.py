"""Who has been stuck in which plugin for too long: a slow scan of the passes under way.

Telling is all it does: budgets end a plugin's call, the client's timeouts end a request. A threshold is a fraction of
the budget, so that there is something to look at while it still hangs. What stays stuck is told again each time its
duration has doubled: a line, not a flood.
"""

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client import Counter

from reconciler.observe.passes import BETWEEN, OWN, Call, Pass
from shared.api.meta import ObjectKey
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

# Against the Runner's budgets of 60, 60, 5 and 10 s; post_bind is the one that nobody should notice. Between plugins
# a pass waits for answers that come within the client's 60 s each, or for a limiter.
THRESHOLDS_S: Mapping[str, float] = MappingProxyType(
    {"pre_bind": 20.0, "bind": 10.0, "post_bind": 1.0, "rollback": 5.0, BETWEEN: 120.0}
)
SCAN_S = 1.0


def is_overdue(point: str, seconds: float, told: int) -> bool:
    """Return whether it is time to tell of something that has taken so long and was told ``told`` times. Pure."""
    threshold_s = THRESHOLDS_S[point]
    return seconds >= threshold_s * float(2**told)


class OverdueMonitor:
    """Tells, in the log and in a counter by plugin and point, of what is overdue."""

    def __init__(self, passes: Mapping[ObjectKey, Pass], overdue: Counter, clock: Clock) -> None:
        self._passes = passes
        self._overdue = overdue
        self._clock = clock

    async def run(self) -> None:
        """Scan until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            self.scan()

    def scan(self) -> None:
        """Look at every pass once."""
        now = self._clock.monotonic()
        for current in self._passes.values():
            for call in current.calls:
                self._judge(current, call, now)
            if not current.calls and is_overdue(BETWEEN, now - current.since, current.told):
                current.told += 1
                self._tell(current, OWN, BETWEEN, now - current.since)

    def ended(self, current: Pass, call: Call) -> None:
        """A call is over. One that kept the event loop from turning was never seen by a scan."""
        if not call.told:
            self._judge(current, call, self._clock.monotonic())

    def _judge(self, current: Pass, call: Call, now: float) -> None:
        if is_overdue(call.point, now - call.since, call.told):
            call.told += 1
            self._tell(current, call.plugin, call.point, now - call.since)

    def _tell(self, current: Pass, plugin: str, point: str, seconds: float) -> None:
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
