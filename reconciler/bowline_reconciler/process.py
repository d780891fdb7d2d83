"""The components of a process while it runs: the order in which they start and stop.

What surrounds them (options, probes, signals, the watchdog of the event loop) is in ``app``; tests run the same
components without it.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from bowline.kube.lease import LeaseTimings
from bowline.runtime.tasks import RootTasks, ShutdownStep, shut_down, wait_done
from bowline_reconciler.term.leader import Leadership, run_while_leader
from bowline_reconciler.term.wiring import Components

# The controller drains for up to 25 s; the plugins stop after that.
WORK = timedelta(seconds=40)
MOMENT = timedelta(seconds=3)


class RunningComponents:
    """Components as root tasks, from construction to ``shut_down``.

    ``stop`` ends the work. ``on_synced`` is that of ``run_while_leader``.
    """

    def __init__(
        self,
        tasks: RootTasks,
        parts: Components,
        leadership: Leadership,
        timings: LeaseTimings,
        stop: asyncio.Event,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._tasks = tasks
        self._parts = parts
        self.watching = {
            name: tasks.start(f"reflector {name}", reflector.run()) for name, reflector in parts.reflectors.items()
        }
        self.events = tasks.start("events", parts.recorder.run())
        self.progress = tasks.start("progress", parts.progress.run())
        self.leading = tasks.start("leading", run_while_leader(leadership, timings, parts, stop, on_synced))

    async def shut_down(self) -> None:
        """Stop in order, after ``stop`` was set."""
        parts, tasks = self._parts, self._tasks
        await shut_down(
            [
                ShutdownStep(
                    "work", "past the point of no return is finished", lambda: wait_done(self.leading), WORK
                ),
                ShutdownStep("events", "they report what has just been completed", parts.recorder.flush, MOMENT),
                ShutdownStep(
                    "watches",
                    "nothing processes their events",
                    lambda: tasks.cancel(*self.watching.values(), self.events),
                    MOMENT,
                ),
            ]
        )
