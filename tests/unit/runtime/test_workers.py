"""Workers over a queue: a failed reconcile costs only time, a failed worker is reported."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest

from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.workers import (
    DONE,
    Priority,
    ReconcileError,
    Result,
    failure_of,
    run_worker,
    wait_failed,
)
from bowline.runtime.workqueue import WorkQueue

pytestmark = pytest.mark.looptime

Calls = list[tuple[str, float]]


def backing_off() -> WorkQueue[str]:
    return WorkQueue(backoff=ItemBackoff(timedelta(seconds=1), timedelta(minutes=1), random=lambda: 0.5))


def reported(_: str) -> None:
    """Report nothing."""


def cannot_be_reported(_: str) -> None:
    raise LookupError("it cannot be reported")


def started(
    queue: WorkQueue[str], answers: dict[str, list[object]], on_error: Callable[[str], None], calls: Calls
) -> "asyncio.Task[None]":
    """A worker whose reconciles return ``answers``, one after the other, then DONE."""

    async def reconcile(key: str) -> Result:
        calls.append((key, asyncio.get_running_loop().time()))
        answer = answers[key].pop(0) if answers.get(key) else DONE
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]  # what plugins return is not checked either

    return asyncio.create_task(run_worker(queue, reconcile, on_error))


@pytest.mark.parametrize(
    ("answer", "due"),
    [
        pytest.param(Result(timedelta(seconds=5)), 5.0, id="after the returned delay"),
        pytest.param(Result(timedelta(), Priority.LOW), 0.0, id="immediately with low priority"),
        pytest.param(ReconcileError("refused"), 0.5, id="rate limited after a failure"),
        pytest.param(ReconcileError("refused", at_least=timedelta(seconds=3)), 3.0, id="not before a bound"),
        pytest.param(ReconcileError("busy", retry_after=timedelta(seconds=7)), 7.5,
            id="after the server's Retry-After"),
        pytest.param(ValueError("a fault"), 1.0, id="rate limited after a defect"),
        pytest.param(SystemExit(3), 1.0, id="rate limited if it exits"),
        pytest.param(asyncio.CancelledError(), 1.0, id="rate limited if what it waits for is cancelled"),
        pytest.param(Result(5.0), 1.0, id="rate limited if what it returns is no time"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_a_key_is_processed_again(answer: object, due: float) -> None:
    queue = backing_off()
    calls: Calls = []
    worker = started(queue, {"a": [answer]}, reported, calls)
    queue.add("a")
    await asyncio.sleep(100)
    assert calls == [("a", 0.0), ("a", due)]
    assert (queue.processing, queue.delayed) == (0, 0)
    queue.shut_down()
    await worker
    assert failure_of(worker) is None


async def test_failures_in_a_row_are_retried_less_often_until_a_success() -> None:
    queue = backing_off()
    calls: Calls = []
    worker = started(
        queue, {"a": [*[ReconcileError("refused")] * 9, DONE, ReconcileError("refused")]}, reported, calls
    )
    queue.add("a")
    await asyncio.sleep(200)
    queue.add("a")
    await asyncio.sleep(100)
    times = [time for _, time in calls]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:9] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert pauses[-1] == 0.5
    queue.shut_down()
    await worker


async def test_an_event_ends_a_backoff_but_not_a_retry_after() -> None:
    queue: WorkQueue[str] = WorkQueue()
    calls: Calls = []
    answers: dict[str, list[object]] = {
        "a": [ReconcileError("refused", at_least=timedelta(seconds=50))],
        "b": [ReconcileError("busy", retry_after=timedelta(seconds=50))],
    }
    worker = started(queue, answers, reported, calls)
    for time in (0.0, 10.0):
        await asyncio.sleep(time)
        for key in ("a", "b"):
            queue.add(key)
    await asyncio.sleep(100)
    assert calls == [("a", 0.0), ("b", 0.0), ("a", 10.0), ("b", 50.0)]
    queue.shut_down()
    await worker


async def test_the_failure_of_one_worker_is_reported_while_the_others_run() -> None:
    queue: WorkQueue[str] = WorkQueue()
    calls: Calls = []
    answers: dict[str, list[object]] = {"a": [ValueError("a fault")]}
    workers = [started(queue, answers, cannot_be_reported, calls) for _ in range(3)]
    noticed = asyncio.create_task(wait_failed(workers))
    for key in ("b", "a", "c"):
        queue.add(key)
    async with asyncio.timeout(1):
        await noticed
    (failed_worker,) = (worker for worker in workers if worker.done())
    assert isinstance(failure_of(failed_worker), LookupError)
    assert queue.processing == 0
    queue.add("d")
    await asyncio.sleep(1)
    assert {key for key, _ in calls} == {"a", "b", "c", "d"}
    queue.shut_down()
    await asyncio.gather(*workers, return_exceptions=True)
