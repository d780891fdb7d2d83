"""The call path of one bind: how often a reconcile changes modules between its start and its result."""

from bowline.framework.config import Binding
from bowline_reconciler.reconciler import Reconciler
from tests.call_path import recorded_stops, returns_of
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

# Packages of the path. Not steps of it: observers, and modules that only hold or check values: caches, in-memory
# state, the views that decisions use, the context of an attempt, the types of what a plugin returns.
PATH = ("/bowline_reconciler/", "/bowline/framework/binding/")
NOT_PATH = (
    *(
        "/bowline_reconciler/observe/",
        "/bowline_reconciler/informers.py",
        "/bowline_reconciler/pod_cache.py",
        "/bowline_reconciler/controller.py",
    ),
    *("/binding/state.py", "/decide/snapshot.py", "/tests/"),
    *("/framework/binding/context.py", "/framework/binding/results.py"),
)
# Changes of module, and how many of them return to a module that was left before. These limits only decrease.
MAX_STOPS, MAX_RETURNS = 30, 15


async def test_a_bind_with_side_effects_passes_few_modules(stage: Stage) -> None:
    scripted = Scripted(effects=True)
    await stage.create_pod()
    await stage.request_bind()
    start = Reconciler.reconcile.__code__
    with recorded_stops(start, PATH, NOT_PATH, tasks=("worker 0", "pre_bind")) as stops:
        async with stage.working(scripted, binding=Binding(workers=1, in_flight_timeout=NO_FLIGHT)):
            await stage.phase("pod", "Succeeded")
    assert stops[0] == "bowline_reconciler/reconciler.reconcile"
    assert len(stops) <= MAX_STOPS, stops
    assert returns_of(stops) <= MAX_RETURNS, stops
