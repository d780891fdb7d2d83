"""A copy of the working tree in which mutants are applied, so that nothing else sees them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = (".", "shared", "webhook", "reconciler", "cli")
PACKAGES = ("bowline", "bowline_webhook", "bowline_reconciler", "bowline_cli", "tests.mutants")


class Tree:
    """The copy. Its modules precede the installed ones, which are those of the working tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Compiled modules are recognised by size and second of their source: each version has a second of its own.
        self._seconds = count(1_000_000_000)
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in listing.splitlines():
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        # Tests of what is packaged list the files of a repository.
        self.output("git", "init", "--quiet")
        self._require_own_modules()

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of processes that run the copy's code, also of those that they start."""
        paths = os.pathsep.join(str(self.root / path) for path in SOURCE_ROOTS)
        return {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}

    def _require_own_modules(self) -> None:
        code = f"import {', '.join(PACKAGES)}; print(*[path for m in ({', '.join(PACKAGES)}) for path in m.__path__])"
        for folder in self.output(sys.executable, "-c", code).split():
            if not Path(folder).is_relative_to(self.root):
                raise RuntimeError(f"the copy in {self.root} would run the code in {folder}")

    def output(self, *command: str) -> str:
        """Return what a command in the copy prints."""
        return subprocess.run(
            command, cwd=self.root, env=self.environ, check=True, capture_output=True, text=True
        ).stdout

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply the mutant in the copy. Raises OutOfDateError."""
        before = (self.root / mutant.file).read_text(encoding="utf-8")
        self._write(mutant.file, mutant.apply(self.root))
        try:
            yield
        finally:
            self._write(mutant.file, before)

    def _write(self, file: str, text: str) -> None:
        second = next(self._seconds)
        (self.root / file).write_text(text, encoding="utf-8")
        os.utime(self.root / file, (second, second))

    def run(self, command: Sequence[str], limit_s: float) -> tuple[int, str] | None:
        """Return the exit status of a command in the copy, and its output; None if it does not end in time."""
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None
        return process.returncode, output
