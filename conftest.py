"""What holds for every test, wherever it lies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# How long an example takes says nothing here: the machine may be busy with a control plane.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on the processes' own event loop, uvloop: its timers, for example, differ from asyncio's.

    Simulated time needs asyncio's.
    """
    if item.get_closest_marker("looptime") is not None:
        return {"asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
async def _no_leaked_tasks() -> AsyncIterator[None]:
    """Fail a test that leaves tasks of its own behind."""
    before = asyncio.all_tasks()
    yield
    # The fixture's own teardown runs in a task of its own.
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left behind: {sorted(task.get_name() for task in left)}"
