"""The call path of one bind: how often a reconcile changes modules between its start and its result."""

import pytest

from bowline.framework.config import Binding
from bowline_reconciler.reconciler import Reconciler
from tests.call_path import recorded_stops, returns_of
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage

# Every module of these packages; nothing is left out.
PATH = ("/bowline_reconciler/", "/bowline/framework/binding/")
# Changes of module, and how many of them return to a module that was left before. These limits only decrease.
MAX_STOPS, MAX_RETURNS = 92, 68


@pytest.mark.usefixtures("no_late_bind")
async def test_a_bind_with_side_effects_passes_few_modules(stage: Stage) -> None:
    scripted = Scripted(effects=True)
    await stage.create_pod()
    await stage.request_bind()
    start = Reconciler.reconcile.__code__
    with recorded_stops(start, PATH, ("/tests/",), tasks=("worker 0", "pre_bind")) as stops:
        async with stage.working(scripted, binding=Binding(workers=1, in_flight_timeout=NO_FLIGHT)):
            await stage.phase("pod", "Succeeded")
    assert stops[0] == "bowline_reconciler/reconciler.reconcile"
    assert len(stops) <= MAX_STOPS, (len(stops), stops)
    assert returns_of(stops) <= MAX_RETURNS, (returns_of(stops), stops)
