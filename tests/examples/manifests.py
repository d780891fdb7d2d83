"""The example manifests with the verdict that each states in its first lines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bowline.framework.strict_yaml import YamlBudget
from bowline_cli.manifests import Manifest, UnreadableError, read_file

FOLDER = Path(__file__).parents[2] / "examples" / "manifests"
# Kinds that an API server has only with another project's CRD.
FOREIGN_GROUPS = frozenset({"jobset.x-k8s.io", "ray.io"})


def read_manifests(file: str) -> list[Manifest]:
    """Return the objects of a file. Raises UnreadableError if it cannot be read completely."""
    content = read_file(file, YamlBudget(), is_named=True)
    for error in content.errors:
        raise UnreadableError(error)
    return content.manifests


@dataclass(frozen=True, slots=True)
class Example:
    """A file and the rules that deny it or warn about it, as it states."""

    path: Path
    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def is_foreign(self) -> bool:
        """Whether one of its kinds is unknown to a plain cluster."""
        return any(manifest.group in FOREIGN_GROUPS for manifest in read_manifests(str(self.path)))


def examples(folder: str) -> list[Any]:
    """Return the examples of a folder as test parameters; at least one."""
    examples = [read_example(path) for path in sorted((FOLDER / folder).glob("*.yaml"))]
    assert examples, f"no manifest in {FOLDER / folder}"
    return [pytest.param(example, id=example.path.stem) for example in examples]


def read_example(path: Path) -> Example:
    """Read the verdict in the second and third line of a file."""
    lines = path.read_text("utf-8").splitlines()
    return Example(path, _stated_rules(path, lines[1], "# errors: "), _stated_rules(path, lines[2], "# warnings: "))


def _stated_rules(path: Path, line: str, prefix: str) -> tuple[str, ...]:
    assert line.startswith(prefix), f"{path}: a line must begin with {prefix!r}, not {line!r}"
    rules = line.removeprefix(prefix)
    return () if rules == "none" else tuple(rules.split(", "))
