"""Attribution of a call's time: to the caller, to the API server, or to the client's own queue.

A caller with a time budget, such as the Runner for a plugin, makes a ``TimeAccount`` the current one; the client
reports to it. A slow API server and an exhausted connection pool are not the caller's failure.

The account is a context variable: tasks that the caller creates inherit it. Work that another task does for the
caller is attributed with ``api_time``. A ``Budget`` is a number of seconds of the caller's own, and the same of
waiting for the API server: what exceeds its own seconds has failed by itself, what has waited as long for the API
server has not. A call that ignores its cancellation is abandoned. Time in which the process was stopped, or did not
get the processor, is nobody's: the budget counts the turns of its event loop. Decision 126.

Beside that, the client notes the calls that a context has in progress (``noting_calls``): for reports of what hangs.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from bowline.kube.calls import Call
from bowline.kube.errors import ConnectionFailed
from bowline.runtime.tasks import TURN_S

T = TypeVar("T")

# Minimum interval between two checks: a call in a queue may have no time left for long.
_CHECK_S = 0.1
# A cancelled call may spend this much time of its own until it ends.
GRACE_S = 3.0


class TimeAccount:
    """Attributes the seconds since its creation, by the clock ``now``.

    Calls may overlap: time with a request at the API server is attributed to the API server, time with requests in
    the queue only to neither, all other time to the caller. What follows ``longest_s`` without an attribution is
    nobody's.
    """

    __slots__ = ("_api_calls", "_api_s", "_caller_s", "_longest_s", "_now", "_queue_calls", "_since")

    def __init__(self, now: Callable[[], float], longest_s: float = math.inf) -> None:
        self._now = now
        self._longest_s = longest_s
        self._since = now()
        self._caller_s = self._api_s = 0.0
        self._queue_calls = self._api_calls = 0

    @property
    def caller_s(self) -> float:
        """Seconds that the caller has spent outside of the client."""
        self._attribute()
        return self._caller_s

    @property
    def api_s(self) -> float:
        """Seconds that the caller has waited for the API server."""
        self._attribute()
        return self._api_s

    def enter_queue(self) -> None:
        """A request starts to wait for a connection."""
        self._attribute()
        self._queue_calls += 1

    def leave_queue(self) -> None:
        """A request stops waiting: it may be sent, or is cancelled."""
        self._attribute()
        self._queue_calls -= 1

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
        seconds = min(now - self._since, self._longest_s)
        if self._api_calls:
            self._api_s += seconds
        elif not self._queue_calls:
            self._caller_s += seconds
        self._since = now


_CURRENT: ContextVar[TimeAccount | None] = ContextVar("time account", default=None)


def current_account() -> TimeAccount:
    """Return the account for the calls of this context; if there is none, one that nothing reads."""
    return _CURRENT.get() or TimeAccount(_zero)


def _zero() -> float:
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


@asynccontextmanager
async def turn_at(lock: asyncio.Lock) -> AsyncIterator[None]:
    """Hold a lock during calls of the API server: a wait for it is attributed to the API server."""
    with api_time():
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the API server without a reply, and since when (monotonic)."""

    call: Call
    since: float


_OPEN_CALLS: ContextVar[list[OpenCall] | None] = ContextVar("open calls", default=None)


@contextmanager
def noting_calls(calls: list[OpenCall]) -> Iterator[None]:
    """Note the calls in progress of a block, and of the tasks that it creates, in the list."""
    token = _OPEN_CALLS.set(calls)
    try:
        yield
    finally:
        _OPEN_CALLS.reset(token)


def open_calls() -> list[OpenCall]:
    """Return the list for the calls in progress of this context; if there is none, one that nothing reads."""
    calls = _OPEN_CALLS.get()
    return calls if calls is not None else []


class Budget:
    """A limit of a call's time: ``await Budget(seconds).run(...)``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._account = TimeAccount(asyncio.get_running_loop().time, TURN_S)
        self.is_out = False
        self.is_api_time = False  # with is_out: the API server's seconds are exhausted, not the caller's

    async def run(self, call: Coroutine[Any, Any, T], name: str, on_abandoned: Callable[[], None]) -> T:
        """Run a call in a task of its own; return or raise its result.

        If the budget is exhausted, the call is cancelled and TimeoutError raised, with ``is_out`` true. If the caller
        is cancelled, so is the call. Either way this method returns only after the call has ended, or has spent
        another ``GRACE_S`` of its own: then ``on_abandoned`` is called, and the call's task continues without a
        caller. A request to the API server that is in flight is always awaited.
        """
        with accounting(self._account):
            task = asyncio.create_task(call, name=name)
        cancellation: asyncio.CancelledError | None = None
        try:
            await asyncio.sleep(0)  # a call without I/O has ended then: no timer is needed
            while not task.done() and (left := self._seconds - max(self._account.caller_s, self._account.api_s)) > 0:
                await asyncio.wait({task}, timeout=min(max(left, _CHECK_S), TURN_S))
        except asyncio.CancelledError as error:
            cancellation = error
        if not task.done() or cancellation is not None:
            caller_s, api_s = self._account.caller_s, self._account.api_s
            self.is_out, self.is_api_time = cancellation is None, api_s > caller_s
            task.add_done_callback(_retrieve)
            task.cancel()
            while not task.done() and (left := caller_s + GRACE_S - self._account.caller_s) > 0:
                try:
                    await asyncio.wait({task}, timeout=min(max(left, _CHECK_S), TURN_S))
                except asyncio.CancelledError as error:
                    cancellation = error
            if not task.done():
                on_abandoned()
            raise cancellation or TimeoutError
        return task.result()


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Retrieve the error of a cancelled call, so that asyncio does not log it as lost."""
    if not task.cancelled():
        task.exception()


class Connections:
    """The free connections of one client, as many as its transport has; a wait for one is accounted for."""

    def __init__(self, count: int, limit_s: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._count = count
        self._limit_s = limit_s

    async def acquire(self, account: TimeAccount) -> None:
        """Wait for a free connection. Raises ConnectionFailed after the limit: nothing has been sent."""
        if not self._free.locked():
            await self._free.acquire()  # does not suspend
            return
        account.enter_queue()
        try:
            async with asyncio.timeout(self._limit_s):
                await self._free.acquire()
        except TimeoutError as error:
            why = f"all {self._count} connections to the API server were in use for {self._limit_s:g} s"
            raise ConnectionFailed(why) from error
        finally:
            account.leave_queue()

    def release(self) -> None:
        """Give a connection back."""
        self._free.release()
