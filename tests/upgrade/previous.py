"""The previous version of Bowline: its chart and its code, from this repository's history.

Until a release is tagged it is a commit, named here only. The charts are installed with the longest timeout of the
webhooks instead of their own: on a busy machine a reply may take seconds, and only a call without a reply is lost.
"""

import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from bowline.localcluster.pair import CHART, LOCAL_VALUES, PairOptions
from bowline.localcluster.workload import CHECKOUT

COMMIT = "c114129"
_TIMEOUT = re.compile(r"timeoutSeconds: \d+")


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
        return PairOptions(chart=self.chart, values_files=(self.values,), set_values={"image.tag": self.tag})

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Python imports this version."""
        return {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}


def present_version(folder: Path) -> Version:
    """Return this checkout; its chart is copied into the folder."""
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
    values = folder / "code" / CHART.relative_to(CHECKOUT) / "values-local.yaml"
    return _with_patient_chart(folder / "code", folder, "0.1.0", values)


def _with_patient_chart(code: Path, folder: Path, tag: str, values: Path) -> Version:
    chart = folder / "chart"
    shutil.copytree(code / CHART.relative_to(CHECKOUT), chart)
    for template in (path for path in (chart / "templates").rglob("*") if path.is_file()):
        template.write_text(_TIMEOUT.sub("timeoutSeconds: 30", template.read_text()))
    return Version(code, chart, tag, values)
