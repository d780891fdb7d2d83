"""What holds for every test, wherever it lies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, LoadScopeScheduling
from xdist.workermanage import WorkerController

_NODE = "tests/node/"

# How long an example takes says nothing here: the machine may be busy with a control plane.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

ROOT = Path(__file__).resolve().parent
# Folders whose tests need nothing but Python. The tests of all others are live: they need an API server or binaries.
UNIT_FOLDERS = (ROOT / "tests" / "unit", ROOT / "bowline" / "shared")
# Of a unit test, which takes well below a second on an idle machine. Live tests have the limit of pyproject.toml.
UNIT_TIMEOUT_S = 30

# Tests that take minutes, by their marker. They run only if -m names it, as their target in the Makefile does.
OWN_TARGETS = {
    "alerts": "each alert in its fault; run with -m alerts",
    "faults": "the whole crash matrix; run with -m faults",
    "presets": "the complete cycle of every preset; run with -m presets",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker, text in OWN_TARGETS.items():
        config.addinivalue_line("markers", f"{marker}: {text}")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of other targets. Mark the rest by folder: ``live``, or the shorter limit of unit tests."""
    deselected = [item for item in items if _is_of_another_target(item, config.option.markexpr)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in UNIT_FOLDERS):
            item.add_marker("live")
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(UNIT_TIMEOUT_S))


def _is_of_another_target(item: pytest.Item, selection: str) -> bool:
    return any(item.get_closest_marker(marker) is not None and marker not in selection for marker in OWN_TARGETS)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on the processes' own event loop, uvloop: its timers, for example, differ from asyncio's.

    Simulated time needs asyncio's.
    """
    if item.get_closest_marker("looptime") is not None:
        return {"asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Distribute files, except that one worker has all tests of the real node, which share one cluster."""
    return OneNodeScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class OneNodeScheduling(LoadFileScheduling):
    """Distributes files to workers, and ``tests/node`` as a whole, first: it takes longest."""

    def _split_scope(self, nodeid: str) -> str:
        return _NODE if nodeid.startswith(_NODE) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if _NODE in self.workqueue:
            self.workqueue.move_to_end(_NODE, last=False)
        super()._assign_work_unit(node)


@pytest.fixture(autouse=True)
async def _no_leaked_tasks() -> AsyncIterator[None]:
    """Fail a test that leaves tasks of its own behind."""
    before = asyncio.all_tasks()
    yield
    # The fixture's own teardown runs in a task of its own.
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left behind: {sorted(task.get_name() for task in left)}"
