"""The note a cluster leaves in its data folder: address and processes, for later commands.

It is written at every start of a process, so that a second `up` sees a cluster that is still starting.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.process import Process, ProcessRecord

# Where a cluster is kept whose user names no folder.
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / ".cluster"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The API server's URL, the kubectl that fits it, and the processes in the order of their start."""

    server: str
    kubectl: str
    processes: tuple[ProcessRecord, ...] = field(default=())

    def attached(self) -> list[Process]:
        """Handles on the processes."""
        return [Process.attach(record) for record in self.processes]


def state_of(server: str, kubectl: Path, processes: Iterable[Process]) -> ClusterState:
    """The note about running processes."""
    return ClusterState(server, str(kubectl), tuple(process.record() for process in processes))


def save_state(path: Path, state: ClusterState) -> None:
    """Write the note in one step, so that a reader never sees half of it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(asdict(state), indent=2))
    fresh.replace(path)


def load_state(path: Path) -> ClusterState | None:
    """The note, or None where there is none."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        document = json.loads(text)
        records = tuple(ProcessRecord(**record) for record in document["processes"])
        return ClusterState(document["server"], document["kubectl"], records)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalClusterError(f"{path} cannot be read ({error}); remove the folder by hand") from error


def later_command(command: str, folder: Path) -> str:
    """The shell line of a later command on the cluster in that folder."""
    where = () if folder == DEFAULT_FOLDER else (f"--data-dir={folder.absolute()}",)
    return shlex.join((sys.executable, "-m", "localcluster", command, *where))
