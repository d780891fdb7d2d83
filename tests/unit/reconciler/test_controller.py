"""A leader whose workers fail stops leading, instead of continuing with fewer workers."""

from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from bowline.api.meta import ObjectKey
from bowline.kube.availability import Availability
from bowline.runtime.workers import Result
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.drive.reconciler import Reconciler
from bowline_reconciler.term.controller import Controller, Memory, Term, new_queue
from bowline_reconciler.watch.informers import Informers, Listed
from tests.unit.reconciler.watching import Watched

KEY = ObjectKey("default", "train")


class OneUnfinished:
    """Stores with one request to reconcile."""

    requests = SimpleNamespace(store={KEY: None})

    async def probe(self) -> None:
        """Succeed."""

    async def compare(self) -> Listed:
        return Listed()


class SoonAgain:
    """A reconciler with its memory that requeues every request; it counts its passes."""

    def __init__(self) -> None:
        self.reconciles = 0
        self.ended = False

    def start_term(self, *_: object) -> None:
        """Do nothing."""

    async def reconcile(self, _: ObjectKey) -> Result:
        self.reconciles += 1
        return Result(timedelta(seconds=1))

    def withdraw(self) -> None:
        """Do nothing."""

    async def end_term(self) -> None:
        self.ended = True


@pytest.mark.looptime
async def test_a_worker_that_fails_ends_the_term_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, work, passes_before = Watched(), SoonAgain(), 3
    availability = Availability(harness.clock)
    queue = new_queue(4, availability, lambda: 0.5)
    controller = Controller(
        queue,
        cast(Reconciler, work),
        cast(Memory, work),
        cast(Informers, OneUnfinished()),
        harness.observation.metrics,
        availability,
        lambda: 0.5,
    )
    as_it_was = WorkQueue.add_after

    def broken(queue: WorkQueue[ObjectKey], key: ObjectKey, delay: timedelta) -> None:
        if work.reconciles > passes_before:
            raise AttributeError("the timer is none")
        as_it_was(queue, key, delay)

    monkeypatch.setattr(WorkQueue, "add_after", broken)
    with pytest.raises(AttributeError, match="the timer is none"):
        await controller.lead(Term(drain=timedelta(seconds=5)))
    assert work.reconciles == passes_before + 1
    assert work.ended
    assert not queue.is_open
    assert harness.value("bowline_pass_errors_total") == 1
