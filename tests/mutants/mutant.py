"""A mutant: one edit of a file of the product, as data."""

from dataclasses import dataclass
from pathlib import Path

# The unit tests nearest to a file, by the beginning of its path. Those of the chart render it: they need Helm.
UNIT_TESTS = {
    "reconciler/": "tests/unit/reconciler",
    "webhook/": "tests/unit/webhook",
    "cli/": "tests/unit/cli",
    "shared/bowline/framework/": "tests/unit/framework",
    "shared/bowline/api/": "tests/unit/api",
    "shared/bowline/kube/": "tests/unit/kube",
    "shared/bowline/runtime/": "tests/unit/runtime",
    "charts/": "tests/chart",
}
# Beside them: the table of preconditions.
GUARDS = "tests/unit/test_write_guards.py"
PLUGINS = "shared/bowline/plugins/"


class OutOfDateError(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One edit, and the suites that should find it beside the unit tests nearest to the file.

    ``name``: unique, in words joined by hyphens; ``defect``: a sentence; ``old``: text that is in ``file`` exactly once,
    and ``new``, which replaces it. ``live``: files with live tests, where no unit test finds it. ``simulation``: what is simulated, each until the
    first violation: a focus of random seeds, or KIND/STORY or KIND/STORY/FAULT, of which every scene is played.
    """

    name: str
    defect: str
    file: str
    old: str
    new: str
    live: tuple[str, ...] = ()
    simulation: tuple[str, ...] = ()

    @property
    def unit_tests(self) -> tuple[str, ...]:
        """The folder with the unit tests nearest to the file, and those of every write."""
        return (self._folder,) if self.file.startswith("charts/") else (self._folder, GUARDS)

    @property
    def _folder(self) -> str:
        if self.file.startswith(PLUGINS):
            plugin = self.file.removeprefix(PLUGINS).partition("/")[0]
            return f"{PLUGINS}{plugin}/tests"
        return next(folder for beginning, folder in UNIT_TESTS.items() if self.file.startswith(beginning))

    def apply(self, root: Path) -> str:
        """Return the file's text with the defect. Raises OutOfDateError."""
        text = (root / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise OutOfDateError(f"{self.name}: {self.file} has {text.count(self.old)} times:\n{self.old}")
        return text.replace(self.old, self.new)
