"""The previous version of Bowline: its chart and its code, from this repository's history.

Until a release is tagged it is a commit, named here only.
"""

import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from tests.localcluster.pair import CHART, PairOptions
from tests.localcluster.workload import CHECKOUT

COMMIT = "c114129"


@dataclass(frozen=True, slots=True)
class Version:
    """A checkout, and how its processes are started: with its own code."""

    folder: Path
    tag: str

    @property
    def options(self) -> PairOptions:
        """The options of an install of this version's chart."""
        chart = self.folder / CHART.relative_to(CHECKOUT)
        return PairOptions(
            chart=chart, values_files=(chart / "values-local.yaml",), set_values={"image.tag": self.tag}
        )

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Python imports this version."""
        return {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}


PRESENT = Version(CHECKOUT, "0.2.0")


def previous_version(folder: Path) -> Version:
    """Extract the previous version into the folder. Skips the test where the history does not have it."""
    archive = subprocess.run(
        ["git", "-C", str(CHECKOUT), "archive", "--format=tar", COMMIT], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"no history with {COMMIT}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return Version(folder, "0.1.0")
