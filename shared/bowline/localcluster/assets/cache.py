"""The cache of supplied binaries: `~/.cache/bowline/<version>/<binary>`.

A file under its final name is always complete: it is written beside its target and renamed. One lock for the whole
cache makes a second process wait for a download or build instead of repeating it; work folders found while holding
the lock belong to a killed run, and are removed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import Recipe
from bowline.localcluster.errors import AssetsError

_WORK_PREFIX = ".work-"


def cache_root(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/bowline`, else `~/.cache/bowline`. A relative setting is ignored, as the XDG specification
    requires.
    """
    cache_home = environ.get("XDG_CACHE_HOME", "")
    base = Path(cache_home) if cache_home.startswith("/") else Path.home() / ".cache"
    return base / "bowline"


class Cache:
    """Finds and stores binaries by the folder and name of their recipe."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, recipe: Recipe) -> Path:
        """The path of this binary, whether or not it exists."""
        return self.root / recipe.folder / recipe.tool

    def find(self, recipe: Recipe) -> Path | None:
        """The binary if it exists and is executable."""
        path = self.path(recipe)
        return path if path.is_file() and os.access(path, os.X_OK) else None

    def admit(self, recipe: Recipe, source: Path) -> Path:
        """Move a finished binary to its target, atomically; `source` must be in a work folder."""
        target = self.path(recipe)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.chmod(0o755)
        # Without the sync a power failure could leave an incomplete file under the final name.
        with source.open("rb") as stream:
            os.fsync(stream.fileno())
        source.replace(target)
        return target

    @contextmanager
    def exclusive(self, progress: Progress) -> Iterator[Path]:
        """Lock the cache and yield a work folder on the same file system, which is removed afterwards."""
        with self._lock_file() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.report(f"another process is filling {self.root}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for stale in self.root.glob(f"{_WORK_PREFIX}*"):
                _remove(stale)
            work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=self.root))
            try:
                yield work
            finally:
                _remove(work)

    def _lock_file(self) -> TextIO:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            return (self.root / ".lock").open("w")
        except OSError as error:
            raise AssetsError(
                f"the cache cannot be written ({error}); set XDG_CACHE_HOME to a folder of yours"
            ) from error


def _remove(folder: Path) -> None:
    """Best effort: a leftover work folder costs space, never correctness."""
    shutil.rmtree(folder, ignore_errors=True)
