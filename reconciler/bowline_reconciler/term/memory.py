"""What the reconciler remembers, from the beginning of a leadership term to its end.

Losing it is safe: a term starts from the API objects, as any other process would. Nothing is decided here.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from bowline.api.meta import ObjectKey
from bowline.framework.binding.runner import Runner
from bowline_reconciler.decide.transient import NO_FAILURES
from bowline_reconciler.drive.driver import Driver
from bowline_reconciler.drive.in_flight import InFlightWrites
from bowline_reconciler.drive.pod_conditions import PodConditions
from bowline_reconciler.drive.requeue import Requeue
from bowline_reconciler.drive.state import RequestStates
from bowline_reconciler.observe.tracker import Observation
from bowline_reconciler.watch.request_cache import RequestCache


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a process, of which one instance exists."""

    states: RequestStates
    requests: RequestCache
    in_flight: InFlightWrites
    requeue: Requeue
    driver: Driver
    conditions: PodConditions
    runner: Runner
    observation: Observation

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the in-memory state, by kind; entries are dropped with their requests."""
        return {
            "requests": len(self.states),
            "pluginStates": self.runner.remembered,
            "waitIndex": len(self.requeue.index),
            "reportTurns": len(self.requeue.report_turns),
            "deferredCompletions": len(self.driver.deferred),
            "podConditions": len(self.conditions),
            **self.requests.sizes,
            **self.observation.sizes,
        }

    def start_term(self, since: float, stale: Collection[ObjectKey], newest: datetime | None) -> None:
        """Begin a leadership term at ``since`` (monotonic).

        ``stale``: keys whose cached request may be older than the previous leader's last writes. ``newest``: the
        latest creationTimestamp of the stored requests.
        """
        self.in_flight.start_term(since, newest)
        self.requests.mark_stale(stale)
        self.conditions.start()

    def reset_failures(self) -> None:
        """The API server is available again after an outage: reset the transient failures."""
        for _, state in self.states.items():
            state.failures = NO_FAILURES
        self.observation.restart()

    def withdraw(self) -> None:
        """Withdraw every attempt: the term is over, and the next leader waits for the last POST's end."""
        for _, state in self.states.items():
            state.attempt.withdraw()

    async def end_term(self) -> None:
        """Drop all state: this process's next term starts from the API objects, as any other process would."""
        await self.conditions.stop()
        self.requests.end_term()
        for key, uid in self.states.clear():
            await self.runner.drop_request(key, uid)
        self.requeue.index.clear()
        self.requeue.report_turns.clear()
        self.driver.deferred.clear()
        self.observation.clear()
