"""Time budget of a plugin's call: a number of seconds of its own, and the same of waiting for the API server.

A call that exceeds its own seconds is the plugin's failure; one that has waited as long for the API server is the API
server's. Time in a queue of the client (a limiter, the connection pool) counts as neither. Decision 126.
"""

import asyncio
from types import TracebackType

from shared.kube.accounting import TimeAccount, accounting

# Minimum interval between two checks: a call in a queue may have no time left for long.
_CHECK_S = 0.1


class Budget:
    """``async with Budget(seconds) as budget``: raises TimeoutError when exhausted, with ``is_out`` true."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._account = TimeAccount(self._loop.time)
        self._accounting = accounting(self._account)
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self.is_out = False
        self.is_api_time = False  # with is_out: the API server's seconds are exhausted, not the plugin's

    async def __aenter__(self) -> "Budget":
        await self._timeout.__aenter__()
        self._accounting.__enter__()
        self._timer = self._loop.call_later(self._seconds, self._check)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._accounting.__exit__(kind, error, trace)
        await self._timeout.__aexit__(kind, error, trace)

    def _check(self) -> None:
        own, api = self._account.own, self._account.api
        left = self._seconds - max(own, api)
        if left > 0:
            self._timer = self._loop.call_later(max(left, _CHECK_S), self._check)
            return
        self.is_out, self.is_api_time = True, api > own
        self._timeout.reschedule(self._loop.time())
