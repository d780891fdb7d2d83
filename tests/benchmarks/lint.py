"""What ``bowline lint`` costs: its start, and a folder with thousands of files. CPU time and wall time of processes.

The files are the example manifests, or those of a folder that the caller names, copied until there are enough.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from bowline.localcluster.checkout import CHECKOUT
from tests.benchmarks.report import Figure, Report

EXAMPLES = CHECKOUT / "examples" / "manifests"


@dataclass(frozen=True, slots=True)
class LintSizes:
    """Sizes of all parts."""

    files: int = 2000
    starts: int = 9
    runs: int = 3


QUICK = LintSizes(files=100, starts=2, runs=1)


async def bench_lint(sizes: LintSizes, folder: Path | None = None) -> Report:
    """Measure both; takes a minute in full. ``folder``: with the manifests to copy."""
    report = Report("bowline lint")
    starts = [_run("lint", str(EXAMPLES / "good" / "fraction-pod.yaml")) for _ in range(sizes.starts)]
    report.add(Figure("start", "s of CPU", tuple(cpu for cpu, _ in starts), wanted="at most 0.3"))
    with tempfile.TemporaryDirectory(prefix="bowline-lint-") as name:
        _copies(folder or EXAMPLES, Path(name), sizes.files)
        runs = [_run("lint", name) for _ in range(sizes.runs)]
    report.add(Figure(f"{sizes.files} files", "s of CPU", tuple(cpu for cpu, _ in runs)))
    report.add(Figure(f"{sizes.files} files, wall", "s", tuple(wall for _, wall in runs), wanted="at most 20"))
    return report


def _copies(source: Path, target: Path, count: int) -> None:
    files = sorted(path for path in source.rglob("*") if path.suffix in (".yaml", ".yml", ".json"))
    for number, file in zip(range(count), cycle(files), strict=False):
        shutil.copyfile(file, target / f"{number:05}{file.suffix}")


def _run(*arguments: str) -> tuple[float, float]:
    """Run the command; returns its CPU time and its wall time, in seconds."""
    command: Sequence[str] = (sys.executable, "-m", "bowline_cli", *arguments)
    before, began = os.times(), time.monotonic()
    subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall, after = time.monotonic() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, wall
