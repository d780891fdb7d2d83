"""What holds for every test, wherever it lies."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, LoadScopeScheduling
from xdist.workermanage import WorkerController

# How long an example takes says nothing here: the machine may be busy with a control plane.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

ROOT = Path(__file__).resolve().parent
# Folders whose tests need nothing but Python. The tests of all others are live: they need an API server or binaries.
UNIT_FOLDERS = (ROOT / "tests" / "unit", ROOT / "shared")
# Of a unit test, which takes well below a second on an idle machine: on a busy one too it ends only what hangs. Live
# tests have the limit of pyproject.toml.
UNIT_TIMEOUT_S = 180

# Tests that take minutes, by their marker. They run only if -m names it, as their target in the Makefile does: parts
# of `make test-all`.
OWN_TARGETS = {
    "author": "the way of a plugin's author with the wheel; run all of tests/wheel with -m 'author or live'",
    "faults": "the whole crash matrix; run with -m faults",
    "gpu": "tests/gpu, on a physical GPU; run with -m gpu",
    "long": "what takes minutes and only a release runs; run with -m long",
    "kai": "tests/kai, with KAI-Scheduler; run with -m kai",
    "node": "tests/node, on a real node; run with -m node",
    "schedulers": "schedulers with a mistake; run all of tests/scheduler_conformance with -m 'schedulers or live'",
    "upgrade": "tests/upgrade, upgrade and rollback under load; run with -m upgrade",
}
# Folders below tests/ that are such a part as a whole; their names are the markers.
OWN_FOLDERS = ("gpu", "kai", "node", "upgrade")


# How work is distributed. One worker has all tests of a folder below tests/, because they share clusters and
# renderings; of these folders and names, workers have single files, because each has a cluster of its own or none.
BY_FILE = ("tests/unit/", "shared/", *(f"tests/chart/test_{name}_live.py" for name in ("check", "emergency")))
# Folders, and files of others, whose tests use the same control plane, as one.
TOGETHER = {
    "tests/api/": "tests/kube/",
    "tests/cli/": "tests/pair/",
    "tests/simulation/": "tests/kube/",
    "tests/pair/test_observability.py": "tests/reconciler/",
    "tests/pair/test_plugin_process.py": "tests/reconciler/",
}
# What is given to workers first: what takes longest, so that at the end no worker is alone with it.
FIRST = (
    "tests/reconciler/",
    "tests/plugins/",
    "tests/testing/",
    "tests/kube/",
    "tests/pair/",
    "tests/chart/",
    "tests/chart/test_check_live.py",
    "tests/examples/",
    "tests/webhook/",
    "tests/scheduler_conformance/",
    "tests/faults/",
)
# What is given to workers last: many short files, with which all workers end at about the same time.
LAST = ("tests/unit/", "shared/")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and state what costs CPU otherwise."""
    # Asked for a loop where there is none, as looptime does, the policy makes one, which nobody closes.
    asyncio.set_event_loop(None)
    # Go's garbage collector is a fifth of the CPU time of kubectl, Helm and a starting API server.
    os.environ.setdefault("GOGC", "400")
    for marker, text in OWN_TARGETS.items():
        config.addinivalue_line("markers", f"{marker}: {text}")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder: their target, ``live``, or the shorter limit of unit tests. Deselect other targets'."""
    for item in items:
        for folder in OWN_FOLDERS:
            if item.path.is_relative_to(ROOT / "tests" / folder):
                item.add_marker(folder)
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
    """Distribute folders and files as stated above."""
    return FolderScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class FolderScheduling(LoadFileScheduling):
    """Distributes folders that share clusters, and single files of the others, the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith("tests/") or nodeid.startswith(BY_FILE):
            return super()._split_scope(nodeid)
        folder = "/".join(nodeid.split("/")[:2]) + "/"
        return TOGETHER.get(nodeid.partition("::")[0]) or TOGETHER.get(folder, folder)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=_place), last=False)
        super()._assign_work_unit(node)


def _place(unit: str) -> int:
    """Return the place of a folder or file in the order; those of the same place stay in the order of collection."""
    if unit.startswith(LAST):
        return len(FIRST) + 1
    return next((place for place, start in enumerate(FIRST) if unit.startswith(start)), len(FIRST))


@pytest.fixture(autouse=True)
def _no_leaked_tasks(request: pytest.FixtureRequest) -> None:
    """Fail an asynchronous test that leaves tasks of its own behind. An event loop for each other test costs CPU."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_tasks")


@pytest.fixture
async def _tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    # The fixture's own teardown runs in a task of its own.
    left = {task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()}
    assert not left, f"tasks left behind: {sorted(task.get_name() for task in left)}"
