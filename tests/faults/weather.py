"""The disturbances of a storm: calls, leaders, nodes, pods and requests. Everything is derived from one seed."""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from bowline.localcluster.errors import LocalApiError
from bowline.testing.fault_proxy.faults import (
    CutWatch,
    DropBefore,
    FailWatch,
    Fault,
    FaultAnswer,
    LoseReply,
    StallWatch,
)
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import WATCH_FAULTS, CallMatch, FaultRule
from tests.faults.lab import Reconciler
from tests.faults.matrix import is_leading

CALLS = ("get", "list", "create", "update", "patch", "delete")
# Ten of every hundred calls, mostly those whose execution is uncertain.
_OF_CALLS: Sequence[tuple[Fault, float]] = (
    (LoseReply(), 0.03),
    (DropBefore(), 0.04),
    (FaultAnswer(429, retry_after_s=1), 0.01),
    (FaultAnswer(500), 0.01),
    (FaultAnswer(503), 0.01),
)
_CONFLICTS = (FaultAnswer(409), 0.01)
_OF_WATCHES: Sequence[tuple[Fault, float]] = (
    (CutWatch(30), 0.1),
    (FailWatch(60, code=410), 0.1),
    (StallWatch(200), 0.05),
)


def storm_rules() -> list[FaultRule]:
    """Return the faults of calls: ten in a hundred fail, a quarter of the watches is disturbed."""
    rules = [FaultRule(fault, CallMatch(CALLS), chance=chance) for fault, chance in _OF_CALLS]
    rules.append(FaultRule(_CONFLICTS[0], CallMatch(("create", "update", "patch")), chance=_CONFLICTS[1]))
    return rules + [FaultRule(fault, CallMatch(("watch",)), chance=chance) for fault, chance in _OF_WATCHES]


class Weather:
    """Runs disturbances on threads within ``with``. Each is repeated after a random pause."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)  # noqa: S311 - repeatable
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def __enter__(self) -> "Weather":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After any failure: no reconciler may be started on a deleted cluster.
        self._end()

    def every(self, seconds: tuple[float, float], name: str, trouble: Callable[[random.Random], bool]) -> None:
        """Repeat it; it returns whether it has done anything."""
        generator = random.Random(self._random.random())  # noqa: S311 - as above; threads share no generator
        thread = threading.Thread(target=self._run, args=(seconds, name, trouble, generator), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def calm(self) -> None:
        """End it; raises the first error of a disturbance."""
        self._end()
        if self._failures:
            raise self._failures[0]

    def _end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(
        self,
        seconds: tuple[float, float],
        name: str,
        trouble: Callable[[random.Random], bool],
        generator: random.Random,
    ) -> None:
        try:
            while not self._over.wait(generator.uniform(*seconds)):
                # The object may have changed meanwhile, or the API server may be busy; the next repetition follows.
                with suppress(LocalApiError, OSError, http.client.HTTPException):
                    self.counts[name] += trouble(generator)
        except BaseException as error:  # noqa: BLE001 - raised again by calm()
            self._failures.append(error)


def leader_killer(reconcilers: Sequence[Reconciler], lives_s: tuple[float, float]) -> Callable[[random.Random], bool]:
    """Return a function that kills a leader after a random time and restarts it; the Lease expires by itself.

    Called several times a second. The time counts from when it leads: on a slow machine its start takes longer, and
    one that never leads long enough for a rollback would prevent requests from ending.
    """
    leader: Reconciler | None = None
    dies_at = 0.0

    def kill(rng: random.Random) -> bool:
        nonlocal leader, dies_at
        leading = next((reconciler for reconciler in reconcilers if is_leading(reconciler)), None)
        if leading is not leader:
            leader, dies_at = leading, time.monotonic() + rng.uniform(*lives_s)
        if leader is None or time.monotonic() < dies_at:
            return False
        leader.kill()
        leader.start()
        leader = None
        return True

    return kill


def failed_share(exchanges: Sequence[Exchange]) -> str:
    """Return how many of the calls failed, as a text."""
    calls = [e for e in exchanges if e.call.verb in CALLS]
    failures = [e for e in calls if e.fault]
    watches = [e for e in exchanges if e.call.verb == "watch" and e.fault in {f.__name__ for f in WATCH_FAULTS}]
    return (
        f"{len(failures)} of {len(calls)} ({100 * len(failures) / max(1, len(calls)):.1f} %), watches: {len(watches)}"
    )
