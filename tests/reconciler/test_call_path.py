"""The call path of a request with side effects: how often its first reconcile changes modules until its result."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType

import pytest

from bowline.framework.config import Binding
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline_reconciler.drive.reconciler import Reconciler
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

# Every module of these packages; nothing is left out.
PATH = ("/bowline_reconciler/", "/bowline/framework/binding/")
TASKS = ("worker 0", "pre_bind")
# Changes of module, and how many of them return to a module that was left before. Watch events that arrive in between
# add a few. Each effect adds one or two: the table that demands it, and what executes it.
MAX_STOPS, MAX_RETURNS = 60, 40


@contextmanager
def recorded_stops(start: CodeType) -> Iterator[list[str]]:
    """Record ``folder/module.function`` at each change of module, from a call of ``start`` to the next one."""
    stops: list[str] = []
    frames: set[FrameType] = set()  # a coroutine that continues is reported as called again
    starts = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal starts
        file, code = frame.f_code.co_filename, frame.f_code
        if event != "call" or frame in frames or code.co_name.startswith("<"):
            return
        if "/tests/" in file or not any(part in file for part in PATH) or _task_name() not in TASKS:
            return
        frames.add(frame)
        starts += code is start
        module = "/".join(file.removesuffix(".py").split("/")[-2:])
        if starts == 1 and (not stops or module_of(stops[-1]) != module):
            stops.append(f"{module}.{code.co_name}")

    sys.setprofile(on_event)
    try:
        yield stops
    finally:
        sys.setprofile(None)


def returns_of(stops: Sequence[str]) -> int:
    """Return how many stops are in a module that the path had left before."""
    return len(stops) - len(set(map(module_of, stops)))


def module_of(stop: str) -> str:
    """Return the module of a stop."""
    return stop.rpartition(".")[0]


def _task_name() -> str:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return ""
    return task.get_name() if task is not None else ""


@pytest.mark.usefixtures("no_late_bind")
@pytest.mark.parametrize(
    ("result", "phase"),
    [
        pytest.param(Status.ok(), "Succeeded", id="bind"),
        pytest.param(Status.fatal("no such device"), "Failed", id="fatal"),
    ],
)
async def test_a_request_with_side_effects_passes_few_modules(stage: Stage, result: Status, phase: str) -> None:
    async def pre_bind(_: BindContext) -> Status:
        return result

    await stage.create_pod()
    await stage.request_bind()
    start = Reconciler.reconcile.__code__
    with recorded_stops(start) as stops:
        scripted = Scripted(effects=True, pre_bind=pre_bind)
        async with stage.working(scripted, binding=Binding(workers=1, in_flight_timeout=NO_FLIGHT)):
            await stage.phase("pod", phase)
    assert stops[0] == "drive/reconciler.reconcile"
    assert len(stops) <= MAX_STOPS, (len(stops), returns_of(stops), "\n".join(stops))
    assert returns_of(stops) <= MAX_RETURNS, (returns_of(stops), stops)
