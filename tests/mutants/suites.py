"""The suites that look for a mutant, as commands: each ends with the first test that fails."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.trees import Tree

# A test that hangs is a test that fails; a loaded machine may need a minute for one that starts a control plane.
TEST_LIMIT_S = 300
SUITE_LIMIT_S = 3600
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+(?: [^-\s]\S*)*)", re.MULTILINE)
_VIOLATED_RUN = re.compile(r"^VIOLATED: (.*)$", re.MULTILINE)
_PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    *("-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"),
)


class Suite(StrEnum):
    """The suites, from the fastest one."""

    UNIT = "unit"
    SIMULATION = "simulation"
    LIVE = "live"


def search(suite: Suite, mutant: Mutant, tree: Tree, runs: int) -> str | None:
    """Run a suite in the tree; returns the first test that fails, or the first run with a violation.

    Empty: none has; None: no test of the suite is named for the mutant. ``runs``: of a simulation.
    """
    if suite is Suite.SIMULATION:
        return _simulate(mutant, tree, f"--runs={runs}") if mutant.simulation else None
    paths = mutant.unit_tests if suite is Suite.UNIT else mutant.live
    if not paths:
        return None
    files = sorted(_test_files(paths, tree), key=lambda file: _likely_first(file, mutant))
    completion = tree.run([*_PYTEST, "-x", *files], SUITE_LIMIT_S)
    if completion is None:
        return f"the end of {' '.join(paths)}, which is not reached"
    return next(iter(_failed_tests(*completion)), "")


def _test_files(paths: Sequence[str], tree: Tree) -> Iterator[str]:
    for path in paths:
        if path.endswith(".py"):
            yield path
        else:
            # In the chart's folder the live tests have this name; elsewhere they are in folders of their own.
            files = [file for file in sorted((tree.root / path).rglob("test_*.py")) if "_live" not in file.name]
            yield from (str(file.relative_to(tree.root)) for file in files)


def _likely_first(file: str, mutant: Mutant) -> tuple[bool, bool]:
    """Sort the files of the mutated module first, and last those that walk a whole space: they take longest."""
    name = Path(file).stem
    return name.startswith("test_every_"), Path(mutant.file).stem not in name


def unsound(suite: Suite, kills: Mapping[str, Mutant], tree: Tree) -> set[str]:
    """Return which of these findings of a suite are made without the mutant as well."""
    if suite is Suite.SIMULATION:
        return {finding for finding, mutant in kills.items() if _simulate(mutant, tree, _only(finding))}
    tests = [finding for finding in kills if "::" in finding or finding.endswith(".py")]
    completion = tree.run([*_PYTEST, *tests], SUITE_LIMIT_S) if tests else (0, "")
    if completion is None:
        raise RuntimeError(f"without a mutant there is no end of {tests}")
    return set(_failed_tests(*completion))


def _failed_tests(status: int, output: str) -> list[str]:
    failures: list[str] = _FAILED_TEST.findall(output)
    if status not in (0, 1, 2) or (status and not failures):
        raise RuntimeError(f"pytest ended with {status}:\n{output[-4000:]}")
    return failures


def _simulate(mutant: Mutant, tree: Tree, option: str) -> str:
    command = [sys.executable, "-m", "tests.mutants.simulated", *mutant.simulation, option]
    completion = tree.run(command, SUITE_LIMIT_S)
    if completion is None:
        return f"the end of {' '.join(command)}, which is not reached"
    status, output = completion
    violated_run = _VIOLATED_RUN.search(output)
    if status and violated_run is None:
        raise RuntimeError(f"{' '.join(command)} ended with {status}:\n{output[-4000:]}")
    return violated_run[1] if violated_run is not None else ""


def _only(finding: str) -> str:
    return f"--only={finding.partition(':')[0].removeprefix('run ')}"
