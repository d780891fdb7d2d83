"""What Python does during a plugin's call: I/O and sleeps, by audit events; and how long it keeps its thread.

An audit hook cannot be removed: one is installed at the first use and records only within ``recorded``.
"""

import asyncio
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

_EVENTS = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "open")
BLOCKING = "blocking "
_CLOCKS = (
    *(time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns),
    *(time.localtime, time.ctime, time.strftime),
)
_WRITES = ("w", "a", "x", "+")
# How often a blocked event loop is looked at.
_POLL_S = 0.05


class _Recorder:
    """The process's audit hook, and the list that it appends to in the recorded thread."""

    def __init__(self) -> None:
        self.events: list[str] | None = None
        self.thread = 0
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.events is None or threading.get_ident() != self.thread or event not in _EVENTS:
            return
        if event == "open" and not (isinstance(arguments[1], str) and any(mode in arguments[1] for mode in _WRITES)):
            return
        # An event loop's sockets do not block.
        connecting = arguments[0] if event == "socket.connect" else None
        if isinstance(connecting, socket.socket):
            word = "" if connecting.gettimeout() == 0 else BLOCKING
            self.events.append(f"{word}{event}({arguments[1]!r})")
        else:
            self.events.append(f"{event}({', '.join(map(repr, arguments[:2]))})")


_RECORDERS: list[_Recorder] = []


@contextmanager
def recorded(files: frozenset[str] = frozenset()) -> Iterator[list[str]]:
    """Record I/O and sleeps of this thread until the block ends, and where `files` read the clock, one line each."""
    if not _RECORDERS:
        _RECORDERS.append(_Recorder())
    recorder = _RECORDERS[0]
    events: list[str] = []
    recorder.thread, recorder.events = threading.get_ident(), events

    def on_call(frame: FrameType, event: str, called: object) -> None:
        if event != "c_call":
            return
        is_clock = called in _CLOCKS or getattr(called, "__name__", "") in ("now", "utcnow", "today")
        if called is time.sleep:
            events.append(f"time.sleep in {line_of(frame)}")
        elif is_clock and frame.f_code.co_filename in files:
            events.append(f"the clock is read in {line_of(frame)}")

    former = sys.getprofile()
    sys.setprofile(on_call)  # before Python 3.13, time.sleep is no audit event
    try:
        yield events
    finally:
        sys.setprofile(former)
        recorder.events = None


@contextmanager
def blocked_places(limit_s: float, code: frozenset[str]) -> Iterator[list[str]]:
    """Record where the running event loop's thread stays for longer than ``limit_s`` without a turn of the loop.

    ``code`` are the files of the plugin: its innermost frame is named.
    """
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    places: list[str] = []
    turns = [time.monotonic()]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_POLL_S):
            loop.call_soon_threadsafe(lambda: turns.append(time.monotonic()))
            if time.monotonic() - turns[-1] > limit_s and (place := _place(thread, code)) and place not in places:
                places.append(place)

    watcher = threading.Thread(target=look, name="watch of the event loop", daemon=True)
    watcher.start()
    try:
        yield places
    finally:
        ended.set()
        watcher.join()


def _place(thread: int, files: frozenset[str]) -> str:
    frame = sys._current_frames().get(thread)
    for entry, _ in reversed(list(traceback.walk_stack(frame))):
        code: CodeType = entry.f_code
        if code.co_filename in files:
            return f"{code.co_name} in {line_of(entry)}"
    return ""


def line_of(frame: FrameType) -> str:
    """Return the line where a frame is, with the name of its file."""
    return f"line {frame.f_lineno} of {frame.f_code.co_filename.rpartition('/')[2]}"
