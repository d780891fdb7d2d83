"""Whether the API server answers this process: for the readiness probe, and for the decision to start again.

A reconciler calls the API server every few seconds, leader or not, so that silence means lost contact. What cannot be
repaired from inside (a kubeconfig or a mount that is gone, a network namespace without routes) is repaired by a new
process more often than by an old one; that is why the process exits. An API server that is down for longer costs a
restart every few minutes and nothing else. Any answer counts, also a 500: then a new process would meet the same.
"""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

CHECK_S = 10.0
UNREADY_S = 30.0
EXIT_S = 300.0


class ContactLost(Exception):  # noqa: N818 - named as what has happened
    """The API server has not answered for EXIT_S."""


class Contact:
    """Watches the number of answers: ``answers`` counts them, ``problem`` is why there are none, if it is known."""

    def __init__(self, answers: Callable[[], int], problem: Callable[[], str | None]) -> None:
        self._answers = answers
        self._problem = problem
        self._last = -1
        # In checks, not by a clock: a process that was stopped or suspended has asked nothing meanwhile.
        self._silent_s = 0.0

    async def run(self) -> None:
        """Check until cancelled. Raises ContactLost."""
        while True:
            answers = self._answers()
            self._silent_s = 0.0 if answers != self._last else self._silent_s + CHECK_S
            self._last = answers
            if self._silent_s >= EXIT_S:
                why = f"the API server has not answered for {EXIT_S:g} s"
                log.error("contact lost, exiting to be started again", extra={"why": why, "problem": self._problem()})
                raise ContactLost(why)
            await asyncio.sleep(CHECK_S)

    def missing(self) -> str | None:
        """Return why the process is not ready; None while the API server answers."""
        if self._silent_s < UNREADY_S:
            return None
        return f"the API server has not answered for {self._silent_s:g} s: {self._problem() or 'no reply'}"
