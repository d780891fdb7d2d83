"""Whether the API server answers this process: for the readiness probe, and for the decision to exit.

A reconciler calls the API server every few seconds, leader or not, so silence means lost contact. What a process
cannot repair itself (a deleted kubeconfig or mount, a network namespace without routes) is often repaired by a
restart, so the process exits. A long outage of the API server costs a restart every few minutes and nothing else. Any
reply counts, also a 500: a new process would get the same.
"""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

CHECK_S = 10.0
UNREADY_S = 30.0
EXIT_S = 300.0


class ContactLost(Exception):  # noqa: N818 - named after the event
    """The API server has not answered for EXIT_S."""


class Contact:
    """Monitors replies: ``answers`` returns their number, ``problem`` why there are none, if that is known."""

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
