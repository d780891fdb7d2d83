"""The lifecycle of a process: its event loop, its root tasks, and the order in which it shuts down.

A process has a few root tasks that run until shutdown. The first one to end, for whatever reason, stops the process:
a partly running process is worse than none, because it seems healthy. Only tasks started here are cancelled here.
"""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import uvloop

log = logging.getLogger(__name__)

T = TypeVar("T")

# How a limit of someone else's time is counted: a turn of the event loop, which counts no more than this.
TURN_S = 1.0
# For tasks that are left when the process ends.
END_S = 2.0
# Threshold of the youngest generation; the default of 700 is reached in a single reconcile. Cycles live longer. The
# requests in progress are some 20,000 objects, which collections would scan again and again.
_YOUNG = 50_000


class ShutdownSignal(asyncio.Event):
    """The shutdown signal, set once; ``reason`` is for the log."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""

    def request(self, reason: str) -> None:
        """Request the shutdown; the first reason counts."""
        if not self.is_set():
            self.reason = reason
            self.set()


@dataclass(frozen=True, slots=True)
class ShutdownStep:
    """One row of a process's shutdown table. ``why`` explains its position."""

    name: str
    why: str
    run: Callable[[], Awaitable[None]]
    budget: timedelta


class RootTasks:
    """The root tasks of a process: ``async with RootTasks(stop) as tasks: tasks.start(...)``.

    Leaving the block cancels the running tasks and raises the tasks' failures, if any, as one ExceptionGroup.
    """

    def __init__(self, stop: ShutdownSignal) -> None:
        self._stop = stop
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[Exception] = []
        self._leaving = False

    async def __aenter__(self) -> "RootTasks":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._failures and error is None:
            raise ExceptionGroup("root tasks failed", self._failures)

    def start(self, name: str, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a root task. If it ends before the shutdown, it stops the process."""
        root_task = asyncio.get_running_loop().create_task(task, name=name)
        self._tasks.add(root_task)
        root_task.add_done_callback(self._on_end)
        return root_task

    async def cancel(self, *tasks: asyncio.Task[None]) -> None:
        """Cancel root tasks as one step of the shutdown, and wait for their end."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            log.error("task failed", extra={"task": task.get_name()}, exc_info=error)
            self._failures.append(error)
        if not self._leaving:
            self._stop.request(f"task {task.get_name()} {'failed' if error else 'ended'}")


async def shut_down(steps: Sequence[ShutdownStep]) -> None:
    """Run the shutdown table row by row. A row that fails or exceeds its budget does not prevent the next ones."""
    for step in steps:
        try:
            async with asyncio.timeout(step.budget.total_seconds()):
                await step.run()
        except TimeoutError:
            log.warning("stop step ran out of time", extra={"step": step.name, "budget": str(step.budget)})
        except Exception:
            log.exception("stop step failed", extra={"step": step.name})


class LimitExceededError(TimeoutError):
    """A block of ``turns_timeout`` has exceeded its limit."""


@asynccontextmanager
async def turns_timeout(limit_s: float) -> AsyncIterator[None]:
    """A timeout of someone else's time, in turns of the event loop of a second: a process that is stopped has none.

    Raises LimitExceededError.
    """
    loop, timeout = asyncio.get_running_loop(), asyncio.timeout(None)
    timer: asyncio.Handle

    def turn(left_s: float) -> None:
        nonlocal timer
        if left_s <= 0:
            timeout.reschedule(loop.time())
        else:
            timer = loop.call_later(min(left_s, TURN_S), turn, left_s - TURN_S)

    timer = loop.call_soon(turn, limit_s)
    try:
        async with timeout:
            yield
    except TimeoutError as error:
        if timeout.expired():
            raise LimitExceededError(f"took longer than {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()


async def wait_until(event: asyncio.Event, limit: timedelta) -> bool:
    """Wait for an event, at most ``limit``; return whether it is set."""
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def wait_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first one has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_done(task: "asyncio.Task[None]") -> None:
    """Wait for a task's end, without cancelling it or raising its error."""
    await asyncio.wait({task})


async def raise_foreign_cancellation(call: Awaitable[T]) -> T:
    """Await a call; raise RuntimeError for a CancelledError that was not a cancellation of this task.

    Then something that the call waited for was cancelled; propagated, the CancelledError would end this task
    silently.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        this = asyncio.current_task()
        if this is None or this.cancelling():
            raise
        raise RuntimeError("what it waited for was cancelled") from error


async def cancel_and_wait(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end. Raises its error."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def all_done(*tasks: "asyncio.Task[Any]") -> None:
    """Wait until every task is done, even if the caller is cancelled meanwhile, once or several times.

    A cancellation is raised after that. The tasks' results and errors are not touched.
    """
    cancellation: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def shield_write(call: Coroutine[Any, Any, T]) -> T:
    """Finish a write even if its caller is cancelled meanwhile, once or several times.

    An interrupted write may still take effect after the rollback has checked for it. Returns and raises what the call
    does; a cancellation takes precedence over both, and is raised when the call has ended. The client's timeout ends
    the call, so the delay is bounded.
    """
    task = asyncio.ensure_future(call)
    try:
        await all_done(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            task.exception()  # the caller is being cancelled: retrieved here so that asyncio does not log it as lost
        raise
    return task.result()


def run_process(main: Callable[[ShutdownSignal], Coroutine[Any, Any, None]]) -> None:
    """Run ``main`` on uvloop. SIGTERM and SIGINT set its ShutdownSignal; a second signal exits immediately.

    Raises the exceptions of ``main``.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_with_signals(main))


async def _with_signals(main: Callable[[ShutdownSignal], Coroutine[Any, Any, None]]) -> None:
    stop = ShutdownSignal()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            # A user at a terminal, or the kubelet, does not want to wait: skip even the finally blocks.
            os._exit(128 + number)
        log.info("stopping", extra={"signal": number.name})
        stop.request(number.name)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await main(stop)
    finally:
        await _end_tasks()


async def _end_tasks() -> None:
    """Cancel the tasks that are left; if one ignores that, exit: the event loop's own end would wait for it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    stuck = (await asyncio.wait(left, timeout=END_S))[1] if left else ()
    if stuck:
        names = sorted(task.get_name() for task in stuck)
        log.error("exiting: tasks ignore their cancellation", extra={"tasks": names}, exc_info=True)
        logging.shutdown()
        os._exit(1)


def freeze_startup_objects() -> None:
    """Exclude all objects that are alive now from garbage collection; call it after a phase of filling caches.

    The collector repeatedly scans all live objects while the process grows. That blocks the event loop for tens of
    milliseconds and finds nothing, because API objects are trees. Reference counting still frees them.
    """
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
