"""Availability of the API server, as observed by this process.

Receives the result of every call of a client. One failed call proves nothing: its object may be the cause. After
several failures since the last success, one probe for the whole process decides: if it succeeds, the API server is
available and the failures belong to their objects; if it fails, the API server is unavailable until a call succeeds,
usually the next probe. Time is the monotonic clock's.

This module does not pause any work: the owner holds its work back while ``available`` is false. Decision 111.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from bowline.kube.errors import ApiError, InfrastructureError, KubeError
from bowline.runtime.clock import Clock
from bowline.runtime.tasks import wait_until

log = logging.getLogger(__name__)

# Failures since the last success that trigger a probe: one or two broken connections are normal.
_SUSPICIOUS = 3
# Interval between probes; half of it is jitter, so that replicas do not probe in step.
_PAUSE = timedelta(seconds=1)
# A small list takes milliseconds; an API server that needs longer must not receive thousands of writes.
_PROBE_BUDGET = timedelta(seconds=5)


class Availability:
    """One client's availability. ``run`` keeps it up to date; without it, ``available`` stays true.

    ``jitter`` returns a random number in [0, 1).
    """

    def __init__(self, clock: Clock, jitter: Callable[[], float] = lambda: 0.5) -> None:
        self._clock = clock
        self._jitter = jitter
        self._failures = 0
        self._suspicion = asyncio.Event()
        self._recovery = asyncio.Event()
        self.available = True
        # When a call last succeeded, by the monotonic clock; -inf if none has.
        self.last_success = float("-inf")

    def observe(self, error: KubeError | None, *, is_lease: bool = False) -> None:
        """Record a call's result. A decision of the API server, such as 404 or 409, is a success.

        ``is_lease``: the call is of a Lease. API Priority and Fairness serves those apart, so that their success does
        not show that other calls are served again.
        """
        if error is None or isinstance(error, ApiError):
            self.last_success = self._clock.monotonic()
            if is_lease:
                return
            self._failures = 0
            self._suspicion.clear()
            self._recovery.set()
        elif isinstance(error, InfrastructureError):
            self._failures += 1
            if self._failures >= _SUSPICIOUS:
                self._suspicion.set()

    async def run(self, probe: Callable[[], Awaitable[object]], on_recovery: Callable[[], None]) -> None:
        """Probe when calls fail, until cancelled.

        ``probe`` makes one call through the client that feeds this object; its result does not matter.
        ``on_recovery`` is called when the API server is available again.
        """
        try:
            while True:
                await self._suspicion.wait()
                if not await self._succeeds(probe):
                    await self._outage(probe)
                    on_recovery()
                await asyncio.sleep(self._pause().total_seconds())
        finally:
            self.available = True

    async def _outage(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Probe until any call succeeds."""
        began = self._clock.monotonic()
        self.available = False
        self._recovery.clear()
        log.warning("the API server is unavailable, requests are held back")
        while not self._recovery.is_set():
            if not await wait_until(self._recovery, self._pause()):
                await self._succeeds(probe)
        self.available = True
        seconds = round(self._clock.monotonic() - began, 1)
        log.warning("the API server is available again", extra={"seconds": seconds})

    async def _succeeds(self, probe: Callable[[], Awaitable[object]]) -> bool:
        self._recovery.clear()
        try:
            async with asyncio.timeout(_PROBE_BUDGET.total_seconds()):
                await probe()
        except (KubeError, TimeoutError) as error:
            log.debug("probe failed", extra={"error": str(error)})
        return self._recovery.is_set()

    def _pause(self) -> timedelta:
        return _PAUSE * (0.5 + self._jitter())
