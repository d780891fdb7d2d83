"""Workers over a queue: a look that fails costs nothing but time, a worker that fails is noticed."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from shared.runtime.workers import failure_of, first_failure, work
from shared.runtime.workqueue import WorkQueue

pytestmark = pytest.mark.looptime

Looks = list[tuple[str, float]]


def again_after_a_minute(_: str) -> timedelta:
    return timedelta(minutes=1)


def no_pause_known(_: str) -> timedelta:
    raise LookupError("no pause is known")


def started(
    queue: WorkQueue[str], answers: dict[str, list[object]], on_fault: Callable[[str], timedelta], looks: Looks
) -> "asyncio.Task[None]":
    """A worker whose looks end as told, one after the other, and in the end with None."""

    async def look(key: str) -> timedelta | None:
        looks.append((key, asyncio.get_running_loop().time()))
        answer = answers[key].pop(0) if answers.get(key) else None
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]  # what plugins return is not checked either

    return asyncio.create_task(work(queue, look, on_fault))


@pytest.mark.parametrize(
    ("answer", "due"),
    [
        pytest.param(timedelta(seconds=5), 5.0, id="when it says"),
        pytest.param(ValueError("a fault"), 60.0, id="after a pause if it fails"),
        pytest.param(asyncio.CancelledError(), 60.0, id="after a pause if what it waits for is cancelled"),
        pytest.param(5.0, 60.0, id="after a pause if what it says is no time"),
    ],
)
async def test_a_key_is_looked_at_again(answer: object, due: float) -> None:
    queue: WorkQueue[str] = WorkQueue()
    looks: Looks = []
    worker = started(queue, {"a": [answer]}, again_after_a_minute, looks)
    queue.add("a")
    await asyncio.sleep(100)
    assert looks == [("a", 0.0), ("a", due)]
    assert (queue.processing, queue.delayed) == (0, 0)
    queue.shut_down()
    await worker
    assert failure_of(worker) is None


async def test_the_failure_of_one_worker_is_noticed_while_the_others_work() -> None:
    queue: WorkQueue[str] = WorkQueue()
    looks: Looks = []
    answers: dict[str, list[object]] = {"a": [ValueError("a fault")]}
    workers = [started(queue, answers, no_pause_known, looks) for _ in range(3)]
    noticed = asyncio.create_task(first_failure(workers))
    for key in ("b", "a", "c"):
        queue.add(key)
    async with asyncio.timeout(1):
        await noticed
    (failed,) = (worker for worker in workers if worker.done())
    assert isinstance(failure_of(failed), LookupError)
    assert queue.processing == 0
    queue.add("d")
    await asyncio.sleep(1)
    assert {key for key, _ in looks} == {"a", "b", "c", "d"}
    queue.shut_down()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_workers_that_end_in_order_have_not_failed() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [started(queue, {}, again_after_a_minute, []) for _ in range(2)]
    noticed = asyncio.create_task(first_failure(workers))
    workers[0].cancel()
    queue.shut_down()
    await asyncio.sleep(1)
    assert [worker.done() for worker in workers] == [True, True]
    assert not noticed.done()
    noticed.cancel()
