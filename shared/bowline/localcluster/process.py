"""One child process: started with a log file, watched, and reliably ended.

Each runs in a session of its own, so that a Ctrl-C at the terminal reaches only the program that owns it, and so that
a signal to its process group also reaches its own children. A `Process` is either our child or one that an earlier
command started and left running; the second kind is identified by its id and its start time, because ids are reused.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.errors import StartError

# As long as a kubelet waits by default.
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a process. `env` None inherits the environment."""

    name: str
    argv: Sequence[str]
    log: Path
    cwd: Path | None = None
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Identifies a process for a later command."""

    name: str
    pid: int
    started: str
    log: str


class Process:
    """A running or ended process with its log."""

    def __init__(self, name: str, pid: int, log: Path, popen: subprocess.Popen[bytes] | None, started: str) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._popen = popen
        self._started = started

    @classmethod
    def start(cls, launch: Launch) -> "Process":
        """Start it; its output is appended to the log, after a line with the command."""
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        with launch.log.open("ab") as log:
            log.write(f"$ {' '.join(map(str, launch.argv))}\n".encode())
            log.flush()
            try:
                popen = subprocess.Popen(
                    list(launch.argv),
                    cwd=launch.cwd,
                    env=None if launch.env is None else dict(launch.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"{launch.name} cannot be started: {error}") from error
        return cls(launch.name, popen.pid, launch.log, popen, _started_at(popen.pid) or "")

    @classmethod
    def attach(cls, record: ProcessRecord) -> "Process":
        """Return a handle on a process that another command started."""
        return cls(record.name, record.pid, Path(record.log), None, record.started)

    def record(self) -> ProcessRecord:
        """The record for `attach`."""
        return ProcessRecord(self.name, self.pid, self._started, str(self.log))

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while running or if it is not our child."""
        return None if self._popen is None else self._popen.poll()

    @property
    def alive(self) -> bool:
        """Whether it still runs; a reused process id does not count."""
        if self._popen is not None:
            return self._popen.poll() is None
        return bool(self._started) and _started_at(self.pid) == self._started

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; False after the timeout."""
        if self._popen is not None:
            try:
                self._popen.wait(timeout)
            except subprocess.TimeoutExpired:
                return False
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.alive:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> bool:
        """SIGTERM, then SIGKILL after the timeout. True if it ended without SIGKILL."""
        if self.alive:
            # A paused process does not handle SIGTERM before SIGCONT.
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        if self.wait(timeout):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """Send SIGKILL to the whole group, and wait for its end."""
        if self.alive:
            self.signal(signal.SIGKILL)
        self.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Suspend it, and return when it is: connections stay open and are not answered."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        # The signal stops one thread after the other; until the last one, the process may still answer.
        while self._popen is not None and self.alive and time.monotonic() < deadline:
            if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is not None:
                return
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Resume a paused process."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group, whose id is the process's own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def tail(self, lines: int = 20) -> str:
        """The end of its log, for an error message."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(text.splitlines()[-lines:])


class ProcessWatchdog:
    """Our end of the pipe to `watchdog.py`; closing it, or ending in any way, ends the watched processes."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("watchdog.py")
        self._popen = subprocess.Popen(
            # Isolated and without site-packages: it starts faster and does not depend on the environment.
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, process: Process) -> None:
        """End this process with us."""
        self._order(f"watch {process.pid}")

    def forget(self, process: Process) -> None:
        """This process has ended; its id may be reused."""
        self._order(f"forget {process.pid}")

    def remove_at_end(self, folder: Path) -> None:
        """Delete this folder with us."""
        self._order(f"remove {folder}")

    def remove_cgroups(self, listing: Path) -> None:
        """Remove the cgroups listed in this file, one path per line, with us."""
        self._order(f"cgroups {listing}")

    def release(self) -> None:
        """Leave everything running."""
        self._order("release")
        self.close()

    def close(self) -> None:
        """End the watched processes and wait for that. Idempotent."""
        if self._popen.stdin is not None and not self._popen.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        self._popen.wait()

    def _order(self, text: str) -> None:
        pipe = self._popen.stdin
        if pipe is None or pipe.closed:
            return
        # A killed watchdog must not end the cluster.
        with contextlib.suppress(BrokenPipeError):
            pipe.write(f"{text}\n".encode())
            pipe.flush()


def _started_at(pid: int) -> str | None:
    """Return a value that distinguishes this process from a later one with the same id; None if it has ended."""
    try:
        # The second field is the command in parentheses and may contain spaces; count from its end.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start_ticks = fields[0], fields[19]
    # A zombie has ended; its parent may no longer exist to reap it.
    return None if state in ("Z", "X") else start_ticks
