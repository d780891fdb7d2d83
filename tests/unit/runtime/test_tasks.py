"""The lifecycle of a process."""

import asyncio
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from bowline.runtime.tasks import RootTasks, ShutdownSignal, ShutdownStep, shield_write, shut_down


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise RuntimeError("worn out")


async def end() -> None:
    return


async def test_the_first_failing_root_task_stops_the_process_with_its_error() -> None:
    stop = ShutdownSignal()
    with pytest.raises(ExceptionGroup) as exception:  # noqa: PT012 - the block is what is tested
        async with RootTasks(stop) as tasks:
            other_task = tasks.start("other", forever())
            tasks.start("worker", fail())
            await stop.wait()
    assert stop.reason == "task worker failed"
    assert [str(error) for error in exception.value.exceptions] == ["worn out"]
    assert other_task.cancelled()


async def test_a_root_task_that_ends_stops_the_process_too() -> None:
    stop = ShutdownSignal()
    async with RootTasks(stop) as tasks:
        tasks.start("election", end())
        await stop.wait()
    assert stop.reason == "task election ended"


@pytest.mark.looptime
async def test_the_stop_table_runs_in_order_whatever_a_row_does() -> None:
    completed_steps: list[str] = []

    def step(name: str, run: float | Exception) -> ShutdownStep:
        async def row() -> None:
            if isinstance(run, Exception):
                raise run
            await asyncio.sleep(run)
            completed_steps.append(name)

        return ShutdownStep(name, "because", row, timedelta(seconds=10))

    await shut_down([step("first", 1), step("hangs", 99), step("fails", OSError("no")), step("last", 1)])
    assert completed_steps == ["first", "last"]
    assert asyncio.get_running_loop().time() == pytest.approx(12)


async def cancelled_times(task: "asyncio.Task[Any]", times: int) -> None:
    """Cancel a task that often, and let it run after each time."""
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("times", [1, 3])
async def test_a_write_ends_before_its_caller_however_often_that_is_cancelled(times: int) -> None:
    sent, arrives, writes = asyncio.Event(), asyncio.Event(), []

    async def write() -> str:
        sent.set()
        await arrives.wait()
        writes.append("written")
        return "reply"

    caller = asyncio.create_task(shield_write(write()))
    await sent.wait()
    await cancelled_times(caller, times)
    assert not caller.done()
    arrives.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert writes == ["written"]
    assert caller.cancelled()


PROGRAM = """
import asyncio
from bowline.runtime.tasks import ShutdownSignal, run_process

async def main(stop: ShutdownSignal) -> None:
    print(type(asyncio.get_running_loop()).__module__, flush=True)
    await stop.wait()
    print(stop.reason, flush=True)
    if {hang}:
        await asyncio.Event().wait()

run_process(main)
"""


@pytest.mark.parametrize(
    ("number", "hang", "returncode"),
    [
        pytest.param(signal.SIGTERM, False, 0, id="SIGTERM stops"),
        pytest.param(signal.SIGINT, True, 130, id="a second SIGINT is the end"),
    ],
)
def test_signals(number: signal.Signals, hang: bool, returncode: int) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM.format(hang=hang)], stdout=subprocess.PIPE, text=True)
    with program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("uvloop")
        program.send_signal(number)
        assert program.stdout.readline() == f"{number.name}\n"
        if hang:
            program.send_signal(number)
        assert program.wait(timeout=30) == returncode
