"""Puts defects into a copy of the product and prints which suite finds each: ``python -m tests.mutants run``.

At the end the tests that have found one run without it: those that fail then have not found it. Ends with 1 if a mutant survives all suites.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.suites import Suite, search, unsound
from tests.mutants.trees import Tree

SURVIVED, FAILS_WITHOUT, NOT_NAMED = "SURVIVED", "FAILS WITHOUT IT", "-"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a suite has done with a mutant. ``result``: the first test that fails, or one of the words above."""

    mutant: str
    suite: Suite
    result: str
    seconds: float

    @property
    def is_kill(self) -> bool:
        """Whether the suite has found the mutant."""
        return self.result not in (SURVIVED, FAILS_WITHOUT, NOT_NAMED)

    def __str__(self) -> str:
        verdict = f"killed by {self.result}" if self.is_kill else self.result
        return f"{self.mutant:40} {self.suite:10} {self.seconds:6.1f} s  {verdict}"


def judge(mutant: Mutant, suite: Suite, tree: Tree, runs: int) -> Cell:
    """Run one suite with the mutant."""
    began = time.monotonic()
    with tree.mutated(mutant):
        finder = search(suite, mutant, tree, runs)
    seconds = time.monotonic() - began
    if finder is None:
        return Cell(mutant.name, suite, NOT_NAMED, 0.0)
    return Cell(mutant.name, suite, finder or SURVIVED, seconds)


def checked(cells: Sequence[Cell], mutants: Sequence[Mutant], tree: Tree) -> list[Cell]:
    """Return the cells without the findings of what fails without the defect as well."""
    by_name = {mutant.name: mutant for mutant in mutants}
    failures: set[str] = set()
    for suite in Suite:
        kills = {cell.result: by_name[cell.mutant] for cell in cells if cell.suite is suite and cell.is_kill}
        failures |= unsound(suite, kills, tree)
    return [replace(cell, result=FAILS_WITHOUT) if cell.result in failures else cell for cell in cells]


def run(mutants: Sequence[Mutant], suites: Sequence[Suite], tree: Tree, options: argparse.Namespace) -> int:
    """Run the suites with each mutant; returns the number of those that survive."""
    cells: list[Cell] = []
    for mutant in mutants:
        for suite in suites:
            cells.append(judge(mutant, suite, tree, options.runs))
            print(cells[-1], flush=True)
            if options.until_found and cells[-1].is_kill:
                break
    unchecked, cells = cells, checked(cells, mutants, tree)
    for before, after in zip(unchecked, cells, strict=True):
        if before != after:
            print(f"{after}: {before.result}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(cell) for cell in cells], indent=1))
    for suite in suites:
        of_suite = [cell for cell in cells if cell.suite is suite and cell.result != NOT_NAMED]
        print(f"{suite}: {sum(cell.is_kill for cell in of_suite)} of {len(of_suite)} killed")
    killed = {cell.mutant for cell in cells if cell.is_kill}
    survivors = [mutant for mutant in mutants if mutant.name not in killed]
    print(f"{len(killed)} of {len(mutants)} mutants killed")
    for mutant in survivors:
        print(f"SURVIVED: {mutant.name}: {mutant.defect}")
    return len(survivors)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the mutants, with the files that they change")
    running = commands.add_parser("run", help="run the suites with each mutant")
    running.add_argument("--only", default="", help="beginnings of names or of changed files, joined by commas")
    running.add_argument("--suites", default=",".join(Suite), help="%(default)s")
    running.add_argument("--runs", type=int, default=100, help="of the simulation (%(default)s)")
    running.add_argument("--until-found", action="store_true", help="no further suite for a mutant that is found")
    running.add_argument("--json", default="", metavar="FILE", help="write the table to a file")
    options = parser.parse_args()
    if options.command == "list":
        print("\n".join(f"{mutant.name:40} {mutant.file}: {mutant.defect}" for mutant in MUTANTS))
        return 0
    beginnings = tuple(options.only.split(","))
    mutants = [
        mutant for mutant in MUTANTS if mutant.name.startswith(beginnings) or mutant.file.startswith(beginnings)
    ]
    suites = [Suite(name) for name in options.suites.split(",")]
    with tempfile.TemporaryDirectory(prefix="bowline-mutants-") as folder:
        return run(mutants, suites, Tree(Path(folder)), options)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
