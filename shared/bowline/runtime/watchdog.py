"""Watches the event loop from a thread: names the plugin that blocks it, and ends the process if that lasts.

A blocked event loop renews no Lease, answers no review and reports nothing, and Python cannot interrupt a call that
blocks in C. After a second the thread logs the plugin, the extension point, the object and the stack. After four
seconds, if it is a plugin that blocks, the thread does what the process leaves to others (``hand_over``, in an event
loop of its own), and exits: another replica, or the container's next process, goes on. A crash during the hand-over
has the effects of a crash at any point.

A call that holds Python's lock, such as a regular expression that backtracks, stops that thread as well. A timer
of the interpreter itself then writes the stacks of all threads to the standard error, and ends the process.
Decision 172.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import Counter

log = logging.getLogger(__name__)

# The thread counts its own turns, not the time: while the whole process is suspended, there are none.
TURN_S = 0.25
REPORT_TURNS, END_TURNS = 4, 16
# With END_TURNS less than the Lease lasts after its last renewal, also where the machine is slow.
HAND_OVER_S = 8.0

# The timer of the interpreter. It also counts the time in which the process is suspended: longer than a Lease lasts.
LOCKED_S = 30.0


class BlockingCall(Protocol):
    """A plugin's call. ``fields``: of a log line, the object that it is about."""

    @property
    def plugin(self) -> str: ...

    @property
    def point(self) -> str: ...

    @property
    def fields(self) -> Mapping[str, str]: ...


Call = TypeVar("Call", bound=BlockingCall)


async def hand_over_nothing(_: BlockingCall, __: str) -> None:
    """The hand-over of a process that holds nothing for others."""


class EventLoopWatchdog(Generic[Call]):
    """Watches one event loop while ``run`` runs there.

    ``current`` returns the plugin's call that a loop is executing, from any thread. ``hand_over`` is awaited in
    another event loop, with the call and the reason.
    """

    def __init__(
        self,
        current: Callable[[asyncio.AbstractEventLoop], Call | None],
        errors: Counter,
        hand_over: Callable[[Call, str], Coroutine[Any, Any, None]] = hand_over_nothing,
    ) -> None:
        self._current = current
        self._errors = errors
        self._hand_over = hand_over

    async def run(self) -> None:
        """Watch until cancelled."""
        stop = threading.Event()
        loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()
        threading.Thread(target=self._watch, args=(loop, loop_thread, stop), name="watchdog", daemon=True).start()
        try:
            while True:
                faulthandler.dump_traceback_later(LOCKED_S, exit=True)
                await asyncio.sleep(LOCKED_S / 6)
        finally:
            faulthandler.cancel_dump_traceback_later()
            stop.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int, stop: threading.Event) -> None:
        alive, silent = threading.Event(), 0
        loop.call_soon_threadsafe(alive.set)
        while not stop.wait(TURN_S):
            if alive.is_set():
                silent = 0
                alive.clear()
                loop.call_soon_threadsafe(alive.set)
                continue
            silent += 1
            call = self._current(loop)
            if silent == REPORT_TURNS:
                self._report(call, sys._current_frames().get(loop_thread))
            if silent >= END_TURNS and call is not None:
                self._end(call)

    def _report(self, call: Call | None, frame: Any) -> None:
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        if call is not None:
            self._errors.labels(plugin=call.plugin, point=call.point).inc()
        log.error("the event loop is blocked", extra={**_named(call), "stack": stack})

    def _end(self, call: Call) -> None:
        why = f"{call.point} blocked the event loop for {END_TURNS * TURN_S:g} s and ended the process"
        try:
            asyncio.run(asyncio.wait_for(self._hand_over(call, why), HAND_OVER_S))
        except Exception:
            log.exception("the blocked attempt is not counted, or the Lease not released", extra=_named(call))
        log.error("exiting: a plugin blocks the event loop", extra=_named(call))
        logging.shutdown()
        os._exit(1)


def _named(call: BlockingCall | None) -> dict[str, str]:
    return {"plugin": call.plugin, "point": call.point, **call.fields} if call is not None else {}
