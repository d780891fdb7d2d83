"""The suites that look for a mutant, as commands: each ends with the first test that fails."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.mutants.mutant import Mutant
from tests.mutants.trees import Tree

# A test that hangs is a test that fails; a loaded machine may need a minute for one that starts a control plane.
TEST_LIMIT_S = 300
SUITE_LIMIT_S = 3600
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+(?: [^-\s]\S*)*)", re.MULTILINE)
_VIOLATED_RUN = re.compile(r"^VIOLATED (\d+): (.*)$", re.MULTILINE)


class Suite(StrEnum):
    """The suites, from the fastest one."""

    UNIT = "unit"
    SIMULATION = "simulation"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Finding:
    """What has found the mutant, and the command that repeats it: of a suite that ends without, None and none."""

    finder: str | None
    repetition: Sequence[str] = ()


def search(suite: Suite, mutant: Mutant, tree: Tree, runs: int) -> Finding | None:
    """Run a suite in the tree; None if none of its tests is named for the mutant. ``runs``: of a simulation."""
    if suite is Suite.SIMULATION:
        return _simulate(mutant, tree, runs) if mutant.simulation else None
    paths = [mutant.unit_tests] if suite is Suite.UNIT else mutant.live
    return _test(tree, paths) if paths else None


def _test(tree: Tree, paths: Sequence[str]) -> Finding:
    completion = tree.run(_pytest(*paths), SUITE_LIMIT_S)
    if completion is None:
        return Finding("it does not end", _pytest(*paths))
    status, output = completion
    if status == 0:
        return Finding(None)
    failed_test = _FAILED_TEST.search(output)
    if status not in (1, 2) or failed_test is None:
        raise RuntimeError(f"pytest {' '.join(paths)} ended with {status}:\n{output[-4000:]}")
    return Finding(failed_test[1], _pytest(failed_test[1]))


def _pytest(*paths: str) -> list[str]:
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"]
    # In the chart's folder the live tests have this name; elsewhere they are in folders of their own.
    return [sys.executable, "-m", "pytest", *options, "--ignore-glob=tests/chart/*_live.py", *paths]


def _simulate(mutant: Mutant, tree: Tree, runs: int) -> Finding:
    command = [sys.executable, "-m", "tests.mutants.simulated", *mutant.simulation]
    completion = tree.run([*command, f"--runs={runs}"], SUITE_LIMIT_S)
    if completion is None:
        return Finding("it does not end", [*command, f"--runs={runs}"])
    status, output = completion
    if status == 0:
        return Finding(None)
    violated_run = _VIOLATED_RUN.search(output)
    if violated_run is None:
        raise RuntimeError(f"{' '.join(command)} ended with {status}:\n{output[-4000:]}")
    return Finding(violated_run[2], [*command, f"--only={violated_run[1]}"])
