"""Which files a kustomization uses as parts of objects: its patches are no whole objects, whatever they contain.

A kustomization names them by paths, often of files below its own folder. A file is looked up from its own folder
upwards, so that one that is named alone, as a hook for commits does, is recognised as well.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bowline.framework.strict_yaml import StrictLoader, YamlBudget

FILES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
# How far above a patch its kustomization may be.
_FOLDERS: Final = 4
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Kustomizations:
    """Answers for files; each kustomization is read once."""

    budget: YamlBudget
    parts: dict[Path, frozenset[Path]] = field(default_factory=dict)

    def has_part(self, file: str) -> bool:
        """Return whether a kustomization names the file as a patch."""
        path = Path(os.path.realpath(file))  # Path.resolve raises RuntimeError at a circle of links
        return any(path in self._parts_of(folder) for folder in path.parents[:_FOLDERS])

    def _parts_of(self, folder: Path) -> frozenset[Path]:
        if folder not in self.parts:
            paths = (path for name in FILES for path in self._paths(folder / name))
            self.parts[folder] = frozenset(Path(os.path.realpath(folder / path)) for path in paths)
        return self.parts[folder]

    def _paths(self, file: Path) -> Iterator[str]:
        """Yield the paths of the patches in a kustomization; none of one that cannot be read."""
        try:
            text = file.read_text() if file.stat().st_size <= _MOST_BYTES else ""
            loader = StrictLoader(text, self.budget)
            try:
                content: Any = loader.get_single_data()
            finally:
                loader.dispose()
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            return
        for key in ("patches", "patchesStrategicMerge", "patchesJson6902"):
            entries = content.get(key) if isinstance(content, dict) else None
            for entry in entries if isinstance(entries, list) else ():
                path = entry.get("path") if isinstance(entry, dict) else entry
                if isinstance(path, str) and "\n" not in path and "\0" not in path:
                    yield path
