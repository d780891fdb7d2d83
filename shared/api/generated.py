"""Files of the chart that are generated from code: printed, written, or compared with the code's output.

Each such module has one ``GeneratedFile`` and a ``main``; ``make verify`` runs them with ``--check``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """A file at ``path`` in the chart's folder. ``module`` is the ``python -m`` module that generates it."""

    module: str
    description: str
    path: Path
    text: Callable[[], str]

    def command(self, arguments: Sequence[str] | None = None) -> int:
        """Print, write or check, depending on the arguments; return the exit code."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        action = parser.add_mutually_exclusive_group()
        action.add_argument("--write", metavar="CHART", type=Path, help="write it into the chart in this folder")
        action.add_argument("--check", metavar="CHART", type=Path, help="exit 1 if the chart's copy differs")
        options = parser.parse_args(arguments)
        if options.write:
            (options.write / self.path).write_text(self.text(), encoding="utf-8")
        elif options.check:
            return self._check(options.check / self.path)
        else:
            sys.stdout.write(self.text())
        return 0

    def _check(self, path: Path) -> int:
        if path.is_file() and path.read_text(encoding="utf-8") == self.text():
            return 0
        sys.stderr.write(f"{path} is out of date; run `python -m {self.module} --write charts/bowline`\n")
        return 1
