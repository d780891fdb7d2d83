"""The components of a process while it runs: the order in which they start and stop, and when they lose contact.

What surrounds them (options, probes, signals, the watchdog of the event loop) is in ``app``; tests run the same
components without it.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from bowline.kube.lease import LeaseTimings
from bowline.runtime.tasks import RootTasks, ShutdownStep, shut_down, wait_done
from bowline_reconciler.term.leader import Leadership, run_while_leader
from bowline_reconciler.term.wiring import Components

log = logging.getLogger(__name__)

CHECK_S = 10.0
UNREADY_S = 30.0
EXIT_S = 300.0
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


class ContactLost(Exception):  # noqa: N818 - named after the event
    """The API server has not answered for EXIT_S."""


class Contact:
    """Whether the API server answers this process: for the readiness probe, and for the decision to exit.

    ``answers`` returns the number of replies, ``problem`` why there are none, if that is known. A reconciler calls
    the API server every few seconds, leader or not, so silence means lost contact. What a process cannot repair
    itself (a deleted kubeconfig or mount, a network namespace without routes) is often repaired by a restart, so the
    process exits. A long outage of the API server costs a restart every few minutes and nothing else. Any reply
    counts, also a 500: a new process would get the same.
    """

    def __init__(self, answers: Callable[[], int], problem: Callable[[], str | None]) -> None:
        self._answers = answers
        self._problem = problem
        self._last = -1
        # Counted in checks, not by a clock: a process that was stopped or suspended has sent no calls meanwhile.
        self._silent_s = 0.0

    async def run(self) -> None:
        """Check until cancelled. Raises ContactLost."""
        while True:
            answers = self._answers()
            self._silent_s = 0.0 if answers != self._last else self._silent_s + CHECK_S
            self._last = answers
            if self._silent_s >= EXIT_S:
                why = f"the API server has not answered for {EXIT_S:g} s"
                log.error("contact lost, exiting to be restarted", extra={"why": why, "problem": self._problem()})
                raise ContactLost(why)
            await asyncio.sleep(CHECK_S)

    def missing(self) -> str | None:
        """Return why the process is not ready; None while the API server answers."""
        if self._silent_s < UNREADY_S:
            return None
        return f"the API server has not answered for {self._silent_s:g} s: {self._problem() or 'no reply'}"
