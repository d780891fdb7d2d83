"""What holds for every test, wherever it lies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# How long an example takes says nothing here: the machine may be busy with a control plane.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

ROOT = Path(__file__).resolve().parent
# Folders whose tests need nothing but Python. The tests of all others are live: they need an API server or binaries.
UNIT_FOLDERS = (ROOT / "tests" / "unit", ROOT / "shared")
# Of a unit test, which takes well below a second on an idle machine. Live tests have the limit of pyproject.toml.
UNIT_TIMEOUT_S = 30


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder: ``live``, or with the shorter limit of unit tests."""
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in UNIT_FOLDERS):
            item.add_marker("live")
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(UNIT_TIMEOUT_S))


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
