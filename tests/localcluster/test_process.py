"""Child processes: started with a log, reliably ended, also when their parent is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.errors import LocalClusterError, StartError
from bowline.localcluster.flags import LOOPBACK
from bowline.localcluster.ports import free_port, free_ports, ports_of_listeners, reports_port_taken
from bowline.localcluster.process import Launch, Process, ProcessRecord
from bowline.localcluster.state import load_state, save_state, state_of
from tests.waiting import wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
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
if sys.argv[2] == "release":
    dog.release()
else:
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


def test_output_is_appended_to_the_log_below_the_command(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    lines = process.tail().splitlines()
    assert lines[0].startswith("$ ")
    assert lines[-1] == "up"
    assert process.alive
    assert process.returncode is None


def test_stop_lets_a_process_end_by_itself(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    assert process.stop() is True
    assert process.returncode == -signal.SIGTERM
    assert not process.alive


def test_stop_kills_a_process_that_does_not_end(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, STUBBORN)
    assert process.stop(timeout=0.1) is False
    assert process.returncode == -signal.SIGKILL


def test_a_paused_process_can_be_stopped(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    process.pause()
    assert process.stop() is True


def test_stopping_twice_is_allowed(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    process.stop()
    assert process.stop() is True
    process.kill()


def test_a_command_that_does_not_exist_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="one cannot be started"):
        Process.start(Launch("one", [str(tmp_path / "nothing")], tmp_path / "one.log"))


def test_a_process_of_another_command_is_found_again_and_ended(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    note = tmp_path / "state.json"
    save_state(note, state_of("https://127.0.0.1:1", tmp_path / "kubectl", [process]))
    state = load_state(note)
    assert state is not None
    [again] = state.attached()
    assert (again.name, again.alive, again.returncode) == ("one", True, None)
    assert again.stop() is True
    assert not process.alive


def test_a_reused_process_id_is_recognised(tmp_path: Path, processes: list[Process]) -> None:
    process = start(processes, tmp_path, SLEEP)
    record = process.record()
    imposter = Process.attach(ProcessRecord(record.name, record.pid, f"{record.started}0", record.log))
    assert not imposter.alive
    imposter.stop()
    assert process.alive, "it must not have been signalled"


def test_state_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    note = tmp_path / "state.json"
    assert load_state(note) is None
    note.write_text('{"server": 1}')
    with pytest.raises(LocalClusterError, match="cannot be read"):
        load_state(note)


def test_a_killed_starters_processes_end_and_its_data_is_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-c", STARTER, str(tmp_path), "wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        group = int(starter.stdout.readline())
        assert not group_has_ended(group)
        starter.kill()
    wait_until(lambda: group_has_ended(group), "the end of the process group")
    wait_until(lambda: not (tmp_path / "data").exists(), "the removal of the data")


def test_released_processes_outlive_their_starter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path), "release"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    group = int(result.stdout)
    try:
        assert not group_has_ended(group)
    finally:
        os.killpg(group, signal.SIGKILL)


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20


def test_no_outgoing_connection_uses_a_port_that_was_found_free() -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as outgoing:
            assert outgoing.getsockname()[1] not in ports_of_listeners()
    assert set(free_ports(20)) <= set(ports_of_listeners())


def draw(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let these ports be drawn, in this order."""
    draws = iter(ports)
    monkeypatch.setattr("bowline.localcluster.ports.random.choice", lambda _: next(draws))


@pytest.fixture
def other_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the ports drawn lately, of which there are none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bowline"


def test_a_port_that_was_drawn_lately_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch, other_notes: Path) -> None:
    """Its listener has not started yet; another program may have drawn it."""
    [first, second] = free_ports(2)
    (other_notes / "ports").unlink()
    draw(monkeypatch, first, first, second)
    assert (free_port(), free_port()) == (first, second)


def test_a_port_that_was_drawn_long_ago_is_drawn_again(monkeypatch: pytest.MonkeyPatch, other_notes: Path) -> None:
    port = free_port()
    notes = other_notes / "ports"
    notes.write_text(f"{port} {time.time() - 7200}\n")
    draw(monkeypatch, port)
    assert free_port() == port


def test_an_incomplete_note_of_a_killed_program_is_ignored(other_notes: Path) -> None:
    other_notes.mkdir(parents=True)
    (other_notes / "ports").write_text("20000 1.5\n2000")
    assert len(set(free_ports(2))) == 2
    assert len((other_notes / "ports").read_text().splitlines()) == 2


def test_without_a_folder_for_notes_ports_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(set(free_ports(2))) == 2


def test_a_taken_port_is_not_found_free(monkeypatch: pytest.MonkeyPatch, other_notes: Path) -> None:
    [busy_port, free] = free_ports(2)
    (other_notes / "ports").unlink()
    draw(monkeypatch, busy_port, free)
    with socket.socket() as listener:
        listener.bind((LOOPBACK, busy_port))
        assert free_port() == free


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param("listen tcp 127.0.0.1:1: bind: address already in use", True, id="a Go program"),
        pytest.param("[Errno 98] Address already in use", True, id="a Python program"),
        pytest.param("connection refused", False, id="another fault"),
    ],
)
def test_a_taken_port_is_recognised(log: str, expected: bool) -> None:
    assert reports_port_taken(log) is expected
