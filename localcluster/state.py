"""The note a cluster leaves in its data folder: address and processes, for later commands.

It is written after every start, so a command that is killed half-way still leaves a note of what runs.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.process import Process, ProcessRecord


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What was noted: the API server's URL and the processes in the order of their start."""

    server: str
    processes: tuple[ProcessRecord, ...] = field(default=())

    def attached(self) -> list[Process]:
        """Handles on the processes."""
        return [Process.attach(record) for record in self.processes]


def save_state(path: Path, server: str, processes: Iterable[Process]) -> None:
    """Write the note in one step, so that a reader never sees half of it."""
    document = {"server": server, "processes": [asdict(process.record()) for process in processes]}
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(document, indent=2))
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
        return ClusterState(document["server"], records)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalClusterError(f"{path} cannot be read ({error}); remove the folder by hand") from error
