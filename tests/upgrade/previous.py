"""The previous version of Bowline: its chart and its code, from this repository's history.

Until a release is tagged it is a commit, named here only. The charts are installed with the longest timeout of the
webhooks instead of their own: on a busy machine a reply may take seconds, and only a call without a reply is lost.
"""

import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.pair import CHART, LOCAL_VALUES, PairOptions
from bowline.localcluster.scheduler import SCHEDULER
from tests.pairs import patient_chart

COMMIT = "68de5f55"


@dataclass(frozen=True, slots=True)
class Version:
    """A checkout, how its processes are started (with its own code), and the chart that is installed."""

    folder: Path
    chart: Path
    tag: str
    values: Path

    @property
    def options(self) -> PairOptions:
        """The options of an install of this version's chart."""
        # The default of the previous version has another name.
        settings: dict[str, Any] = {"image.tag": self.tag, "config.schedulerNames": [SCHEDULER]}
        return PairOptions(chart=self.chart, values_files=(self.values,), set_values=settings)

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Python imports this version."""
        folders = ("shared", "webhook", "reconciler", "cli")
        return {"PYTHONPATH": ":".join(str(self.folder / name) for name in folders), "PYTHONSAFEPATH": "1"}


def present_version(folder: Path) -> Version:
    """Return this checkout; its chart is copied there."""
    return _with_patient_chart(CHECKOUT, folder, "0.2.0", LOCAL_VALUES)


def previous_version(folder: Path) -> Version:
    """Extract the previous version into the folder. Skips the test where the history does not have it."""
    archive = subprocess.run(
        ["git", "-C", str(CHECKOUT), "archive", "--format=tar", COMMIT], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"no history with {COMMIT}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder / "code", filter="data")
    values = folder / "code" / LOCAL_VALUES.relative_to(CHECKOUT)
    return _with_patient_chart(folder / "code", folder, "0.1.0", values)


def _with_patient_chart(code: Path, folder: Path, tag: str, values: Path) -> Version:
    chart = patient_chart(code / CHART.relative_to(CHECKOUT), folder / "chart")
    return Version(code, chart, tag, values)
