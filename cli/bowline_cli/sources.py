"""Which files ``bowline lint`` reads: those that are named, and the manifest files of directories."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from bowline_cli.manifests import STANDARD_INPUT

SUFFIXES = (".yaml", ".yml", ".json")
_FOREIGN = ("node_modules",)


@dataclass(slots=True)
class SourceFiles:
    """The files, each with whether the user has named it; ``charts``: folders of Helm charts whose templates are not
    read; ``links``: links to folders, which are not followed; ``errors``: of folders that cannot be read.
    """

    files: list[tuple[str, bool]] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    errors: list[OSError] = field(default_factory=list)


def sources_of(paths: Sequence[str], excludes: Sequence[str] = ()) -> SourceFiles:
    """Return the files to read, those of a directory in order of their names.

    Not searched are folders whose name begins with a dot, node_modules, and the templates of Helm charts.
    ``excludes``: patterns of paths or names of files and folders.
    """
    sources = SourceFiles()
    for path in paths:
        if path != STANDARD_INPUT and os.path.isdir(path):  # noqa: PTH112 - it raises no OSError
            sources.files += [(file, False) for file in sorted(_files_below(path, excludes, sources))]
        else:
            sources.files.append((path, True))
    return sources


def _files_below(root: str, excludes: Sequence[str], sources: SourceFiles) -> Iterator[str]:
    for folder, folders, files in os.walk(root, onerror=sources.errors.append):
        is_chart = "Chart.yaml" in files
        if is_chart and "templates" in folders:
            sources.charts.append(str(Path(folder)))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _FOREIGN
            and not (is_chart and name == "templates")
            and not _is_excluded(root, Path(folder, name), excludes)
        )
        sources.links += [str(path) for path in (Path(folder, name) for name in folders) if path.is_symlink()]
        for name in files:
            path = Path(folder, name)
            if name.endswith(SUFFIXES) and not _is_excluded(root, path, excludes) and not _is_special(path):
                yield str(path)


def _is_special(path: Path) -> bool:
    """Return whether a path is a pipe or a device, whose reading may not end; a link to nothing is not."""
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 - they raise no OSError


def _is_excluded(root: str, path: Path, patterns: Sequence[str]) -> bool:
    names = (str(path), str(path.relative_to(root)), path.name)
    return any(fnmatch(name, pattern.rstrip("/")) for name in names for pattern in patterns)
