"""The call path of one bind: how often a reconcile changes modules between its start and its result."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from reconciler.reconciler import Reconciler
from shared.framework.config import Binding
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

# Packages of the path. Not steps of it: observers, and modules that only hold values: caches, in-memory state, the
# views that decisions use, the context of an attempt.
PATH = ("/reconciler/", "/shared/framework/binding/")
NOT_PATH = (
    *("/reconciler/observe/", "/reconciler/informers.py", "/reconciler/pod_cache.py", "/reconciler/controller.py"),
    *("/binding/state.py", "/decide/observed.py", "/framework/binding/context.py", "/tests/"),
)
# Changes of module, and how many of them return to a module that was left before. These limits only decrease.
MAX_STOPS, MAX_RETURNS = 53, 36


@contextmanager
def recorded_modules(worker: str) -> Iterator[list[str]]:
    """Record ``module.function`` at each change of module, from the first reconcile of that worker to its end."""
    stops: list[str] = []
    seen: set[FrameType] = set()  # a coroutine that continues is reported as called again
    reconciles = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal reconciles
        path, code = frame.f_code.co_filename, frame.f_code
        if event != "call" or frame in seen or code.co_name.startswith("<"):
            return
        if any(part in path for part in NOT_PATH) or not any(part in path for part in PATH):
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return
        if task is None or task.get_name() not in (worker, "pre_bind"):
            return
        seen.add(frame)
        reconciles += code is Reconciler.reconcile.__code__
        module = path.rpartition("/")[2].removesuffix(".py")
        if reconciles == 1 and (not stops or stops[-1].partition(".")[0] != module):
            stops.append(f"{module}.{code.co_name}")

    sys.setprofile(on_event)
    try:
        yield stops
    finally:
        sys.setprofile(None)


async def test_a_bind_with_side_effects_passes_few_modules(stage: Stage) -> None:
    scripted = Scripted(effects=True)
    await stage.create_pod()
    await stage.request_bind()
    with recorded_modules("worker 0") as stops:
        async with stage.working(scripted, binding=Binding(workers=1, in_flight_timeout=NO_FLIGHT)):
            await stage.phase("pod", "Succeeded")
    assert stops[0] == "reconciler.reconcile"
    returns = len(stops) - len({stop.partition(".")[0] for stop in stops})
    assert len(stops) <= MAX_STOPS, stops
    assert returns <= MAX_RETURNS, stops
