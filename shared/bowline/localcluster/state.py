"""The state file in a cluster's data folder: address and processes, for later commands.

It is written at every start of a process, so that a second `up` detects a cluster that is still starting.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bowline.localcluster.checkout import CHECKOUT, is_checkout
from bowline.localcluster.errors import LocalClusterError
from bowline.localcluster.process import Process, ProcessRecord

_NAME = ".cluster"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The API server's URL, the matching kubectl, and the processes in the order of their start."""

    server: str
    kubectl: str
    processes: tuple[ProcessRecord, ...] = field(default=())

    def attached(self) -> list[Process]:
        """Handles on the processes."""
        return [Process.attach(record) for record in self.processes]


def state_of(server: str, kubectl: Path, processes: Iterable[Process]) -> ClusterState:
    """The state of running processes."""
    return ClusterState(server, str(kubectl), tuple(process.record() for process in processes))


def save_state(path: Path, state: ClusterState) -> None:
    """Write the state atomically, so that a reader never sees a partial file."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps(asdict(state), indent=2))
    fresh.replace(path)


def load_state(path: Path) -> ClusterState | None:
    """Return the state; None if there is none. Raises LocalClusterError for an unreadable file."""
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


def default_folder() -> Path:
    """Return the default data folder: in the checkout; of a wheel, in the working directory."""
    return (CHECKOUT if is_checkout() else Path.cwd()) / _NAME


def later_command(command: str, folder: Path) -> str:
    """Return the shell line of a later command on the cluster in that folder, from any working directory."""
    is_implied = is_checkout() and folder == default_folder()
    where = () if is_implied else (f"--data-dir={folder.absolute()}",)
    return shlex.join((sys.executable, "-m", "bowline.localcluster", command, *where))


def absence(folder: Path) -> str:
    """Return that no cluster is in the folder, and the command that starts one."""
    command = "make up" if is_checkout() else later_command("up", folder)
    return f"no cluster is there; `{command}` starts one"
