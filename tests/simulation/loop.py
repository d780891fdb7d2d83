"""An event loop with virtual time, in which simulated processes run beside each other.

Time advances only when nothing is ready, directly to the next timer. Every handle belongs to the process in whose
context it was scheduled, or to the world (no process). Handles of a dead process are dropped, so a process can die at
any await, without ``finally`` blocks; those of a paused one (SIGSTOP) are kept until it continues.

Sets of tasks and futures iterate in an order that follows from their creation, not from their addresses, so that
equal seeds give equal runs.
"""

import asyncio
import heapq
from collections import deque
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from itertools import count
from typing import Any

_IDS = count()


class State(Enum):
    """Whether a process's handles run, are kept, or are dropped."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Process:
    """A simulated process: what its handles do is decided by its state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.backlog: deque[Any] = deque()
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
# For handles of the world that a process's call creates.
WORLD: Context = Context()


class Future(asyncio.Future[Any]):
    """A future whose hash follows from the order of creation."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._number = next(_IDS)

    def __hash__(self) -> int:
        return self._number


class Task(asyncio.Task[Any]):
    """A task of a process, or of the world; its hash follows from the order of creation."""

    _number: int
    process: Process | None

    # The hash is needed before __init__ has returned: the loop registers the task.
    def __new__(cls, *_: Any, **options: Any) -> "Task":
        task = super().__new__(cls)
        task._number = next(_IDS)
        context = options.get("context")
        task.process = context.get(PROCESS) if context is not None else PROCESS.get()
        return task

    def __hash__(self) -> int:
        return self._number


_READ_S = 1e-7
# Handles run without any time passing: more is a loop that only yields.
SPIN_LIMIT = 200_000


class StuckError(Exception):
    """Nothing is ready and no timer is set."""


class SpinningError(Exception):
    """Handles run on and on and time does not advance; the message names the last ones."""


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """The loop. It has no selector, because there is no I/O."""

    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0.0
        self._clock_resolution = 1e-9
        self.steps = 0
        self._spins = 0
        self.graveyard: list[Any] = []
        self.set_task_factory(lambda loop, coro, **options: Task(coro, loop=loop, **options))

    def time(self) -> float:
        """Return the virtual time. Reading it takes a moment: code that waits by reading it ends, as in reality."""
        self._clock += _READ_S
        return self._clock

    def create_future(self) -> Future:
        """Return a future with a fixed hash."""
        return Future(loop=self)

    def _write_to_self(self) -> None: ...

    def _run_once(self) -> None:
        timers, ready = self._scheduled, self._ready
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise StuckError
            self._clock = max(self._clock, timers[0]._when)
            self._spins = 0
        while timers and timers[0]._when <= self._clock:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.state is not State.RUNNING:
                if process.state is State.PAUSED:
                    process.backlog.append(handle)
                continue
            self.steps += 1
            self._spins += 1
            if self._spins > SPIN_LIMIT:
                raise SpinningError(f"{process}: {handle!r}, before it {list(ready)[:3]!r}")
            handle._run()

    def kill(self, process: Process) -> None:
        """End a process here and now. Its tasks are kept, so that no ``finally`` of theirs ever runs."""
        process.state = State.DEAD
        process.backlog.clear()
        self.graveyard += [
            task for task in asyncio.all_tasks(self) if isinstance(task, Task) and task.process is process
        ]

    def pause(self, process: Process) -> None:
        """Stop a process, as SIGSTOP does: its handles are kept."""
        process.state = State.PAUSED

    def resume(self, process: Process) -> None:
        """Let a paused process continue."""
        if process.state is State.PAUSED:
            process.state = State.RUNNING
            # As an event loop that polls for I/O before it looks at its timers: replies that have arrived are handled
            # before timers that were due earlier.
            self._ready.extend(sorted(process.backlog, key=lambda handle: isinstance(handle, asyncio.TimerHandle)))
            process.backlog.clear()

    def later(self, delay: float, call: Any, *arguments: Any) -> asyncio.TimerHandle:
        """Call something of the world later, whatever happens to the process that asked for it."""
        return self.call_at(self._clock + delay, call, *arguments, context=WORLD)
