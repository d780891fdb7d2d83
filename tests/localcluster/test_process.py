"""Child processes: started with a log, reliably ended, also when their parent is killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.process import Launch, Process, ProcessRecord
from tests.waiting import wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# Starts a cluster's watchdog and a child with its own child, then waits to be killed.
STARTER = """
import sys, time
from pathlib import Path
from bowline.localcluster.process import Launch, Process, ProcessWatchdog
folder = Path(sys.argv[1])
dog = ProcessWatchdog()
dog.remove_at_end(folder / "data")
sleep = "import time; time.sleep(600)"
code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{sleep}']); {sleep}"
child = Process.start(Launch("child", [sys.executable, "-c", code], folder / "child.log"))
dog.watch(child)
print(child.pid, flush=True)
time.sleep(600)
"""


def group_has_ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    """Processes that are ended after the test in any case."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()


def start(processes: list[Process], tmp_path: Path, code: str) -> Process:
    process = Process.start(Launch("one", [sys.executable, "-c", code], tmp_path / "one.log"))
    processes.append(process)
    wait_until(lambda: "up" in process.tail().split("\n") or not process.alive, "the first line")
    return process


def test_a_reused_process_id_is_recognised(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    record = process.record()
    imposter = Process.attach(ProcessRecord(record.name, record.pid, f"{record.started}0", record.log))
    assert not imposter.alive
    imposter.stop()
    assert process.alive, "it must not have been signalled"


def test_a_killed_starters_processes_end_and_its_data_is_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        group = int(starter.stdout.readline())
        assert not group_has_ended(group)
        starter.kill()
    wait_until(lambda: group_has_ended(group), "the end of the process group")
    wait_until(lambda: not (tmp_path / "data").exists(), "the removal of the data")
