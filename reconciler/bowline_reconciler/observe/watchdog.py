"""Watches the event loop from a thread: names the plugin that blocks it, and ends the process if that lasts.

A blocked event loop renews no Lease and reports nothing, and Python cannot interrupt a call that blocks in C. After a
second the thread logs the plugin, the extension point, the request and the stack. After four seconds, if it is a
plugin that blocks, the thread fences the process's client, counts the attempt and releases the Lease with a client
and an event loop of its own, and exits: another replica, or the container's next process, leads. A crash between
these writes has the effects of a crash at any point: the attempt is not counted, or the Lease expires.

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
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import Counter

from bowline.framework.binding.runner import PluginCall

log = logging.getLogger(__name__)

# The thread counts its own turns, not the time: while the whole process is suspended, there are none.
TURN_S = 0.25
REPORT_TURNS, END_TURNS = 4, 16
# With END_TURNS less than the Lease lasts after its last renewal, also where the machine is slow.
HAND_OVER_S = 8.0

# The timer of the interpreter. It also counts the time in which the process is suspended: longer than a Lease lasts.
LOCKED_S = 30.0

HandOver = Callable[[PluginCall, str, str], Coroutine[Any, Any, None]]


class EventLoopWatchdog:
    """Watches one event loop while ``run`` runs there.

    ``current`` returns the plugin's call that a loop is executing, from any thread. ``hand_over`` is awaited in
    another event loop, with the call, the reason, and the identity in the Lease; empty if this process does not lead.
    """

    def __init__(
        self, current: Callable[[asyncio.AbstractEventLoop], PluginCall | None], errors: Counter, hand_over: HandOver
    ) -> None:
        self._current = current
        self._errors = errors
        self._hand_over = hand_over
        self._identity = ""

    @contextmanager
    def holding(self, identity: str) -> Iterator[None]:
        """Context in which this process holds the Lease as ``identity``."""
        self._identity = identity
        try:
            yield
        finally:
            self._identity = ""

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

    def _report(self, call: PluginCall | None, frame: Any) -> None:
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        named = {"plugin": call.plugin, "point": call.point, "bindRequest": str(call.key)} if call is not None else {}
        if call is not None:
            self._errors.labels(plugin=call.plugin, point=call.point).inc()
        log.error("the event loop is blocked", extra={**named, "stack": stack})

    def _end(self, call: PluginCall) -> None:
        why = f"{call.point} blocked the event loop for {END_TURNS * TURN_S:g} s and ended the process"
        named = {"plugin": call.plugin, "point": call.point, "bindRequest": str(call.key)}
        try:
            asyncio.run(asyncio.wait_for(self._hand_over(call, why, self._identity), HAND_OVER_S))
        except Exception:
            log.exception("the blocked attempt is not counted, or the Lease not released", extra=named)
        log.error("exiting: a plugin blocks the event loop", extra=named)
        logging.shutdown()
        os._exit(1)
