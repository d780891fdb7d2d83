"""Which files a kustomization uses as parts of objects: its patches are no whole objects, whatever they contain, and
its resources may get their selector from it.

A kustomization names them by paths, often of files below its own folder. A file is looked up from its own folder
upwards, so that one that is named alone, as a hook for commits does, is recognised as well.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import yaml

from bowline.framework.strict_yaml import StrictLoader, YamlBudget

FILES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
# How far above a patch its kustomization may be.
_FOLDERS: Final = 4
_MOST_BYTES: Final = 1 << 20


class Part(Enum):
    """As what a kustomization names a file."""

    RESOURCE = "resource"
    PATCH = "patch"


_FIELDS: Final = (
    ("resources", Part.RESOURCE),
    *((key, Part.PATCH) for key in ("patches", "patchesStrategicMerge", "patchesJson6902")),
)


@dataclass(frozen=True, slots=True)
class Kustomizations:
    """Answers for files; each kustomization is read once."""

    budget: YamlBudget
    parts: dict[Path, Mapping[Path, Part]] = field(default_factory=dict)

    def part(self, file: str) -> Part | None:
        """Return as what a kustomization names the file; None if none does."""
        path = Path(os.path.realpath(file))  # Path.resolve raises RuntimeError at a circle of links
        parts = [self._parts_of(folder).get(path) for folder in path.parents[:_FOLDERS]]
        return Part.PATCH if Part.PATCH in parts else next(filter(None, parts), None)

    def _parts_of(self, folder: Path) -> Mapping[Path, Part]:
        if folder not in self.parts:
            entries = (entry for name in FILES for entry in self._paths(folder / name))
            self.parts[folder] = {Path(os.path.realpath(folder / path)): part for path, part in entries}
        return self.parts[folder]

    def _paths(self, file: Path) -> Iterator[tuple[str, Part]]:
        """Yield the paths in a kustomization, the patches last; none of one that cannot be read."""
        try:
            text = file.read_text() if file.stat().st_size <= _MOST_BYTES else ""
            loader = StrictLoader(text, self.budget)
            try:
                content: Any = loader.get_single_data()
            finally:
                loader.dispose()
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            return
        for key, part in _FIELDS:
            entries = content.get(key) if isinstance(content, dict) else None
            for entry in entries if isinstance(entries, list) else ():
                path = entry.get("path") if isinstance(entry, dict) else entry
                if isinstance(path, str) and "\n" not in path and "\0" not in path:
                    yield path, part
