"""Attribution of a call's time: to the caller, to the API server, or to the client's own queue.

A caller with a time budget, such as the Runner for a plugin, makes a ``TimeAccount`` the current one; the client
reports to it. A slow API server and an exhausted connection pool are not the caller's failure.

The account is a context variable: tasks that the caller creates inherit it. Work that another task does for the
caller is attributed with ``api_time``. A ``Budget`` is a number of seconds of the caller's own, and the same of
waiting for the API server: what exceeds its own seconds has failed by itself, what has waited as long for the API
server has not. Decision 126.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

# Minimum interval between two checks: a call in a queue may have no time left for long.
_CHECK_S = 0.1


class TimeAccount:
    """Attributes the seconds since its creation, by the clock ``now``.

    Calls may overlap: time with a request at the API server is attributed to the API server, time with requests in
    the queue only to neither, all other time to the caller.
    """

    __slots__ = ("_api", "_api_calls", "_now", "_own", "_queued", "_since")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self._own = self._api = 0.0
        self._queued = self._api_calls = 0

    @property
    def own(self) -> float:
        """Seconds that the caller has spent outside of the client."""
        self._attribute()
        return self._own

    @property
    def api(self) -> float:
        """Seconds that the caller has waited for the API server."""
        self._attribute()
        return self._api

    def enter_queue(self) -> None:
        """A request starts to wait for a connection."""
        self._attribute()
        self._queued += 1

    def leave_queue(self) -> None:
        """A request stops waiting: it may be sent, or is cancelled."""
        self._attribute()
        self._queued -= 1

    def enter_api(self) -> None:
        """A request is sent."""
        self._attribute()
        self._api_calls += 1

    def leave_api(self) -> None:
        """A request has its reply, or has failed."""
        self._attribute()
        self._api_calls -= 1

    def _attribute(self) -> None:
        now = self._now()
        if self._api_calls:
            self._api += now - self._since
        elif not self._queued:
            self._own += now - self._since
        self._since = now


_CURRENT: ContextVar[TimeAccount | None] = ContextVar("time account", default=None)


def current_account() -> TimeAccount:
    """Return the account for the calls of this context; if there is none, one that nothing reads."""
    return _CURRENT.get() or TimeAccount(_stopped)


def _stopped() -> float:
    return 0.0


@contextmanager
def accounting(account: TimeAccount) -> Iterator[None]:
    """Make the account the current one."""
    token = _CURRENT.set(account)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def api_time() -> Iterator[None]:
    """Attribute a block to the API server: another task makes requests on behalf of this one, which waits for it."""
    account = current_account()
    account.enter_api()
    try:
        yield
    finally:
        account.leave_api()


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
        self.is_api_time = False  # with is_out: the API server's seconds are exhausted, not the caller's

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
