"""The folder in which supplied binaries stay: `~/.cache/bowline/<version>/<binary>`.

A file under its final name is always whole: it is written beside its place and renamed there. One lock
for the whole cache lets a second process wait for a download or build instead of repeating it; work
folders found while holding the lock belong to a run that was killed, and are removed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from localcluster.assets.progress import Progress
from localcluster.assets.recipes import Recipe
from localcluster.errors import AssetsError

_WORK_PREFIX = ".work-"


def cache_root(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/bowline`, else `~/.cache/bowline`. A relative setting is ignored, as XDG says."""
    configured = environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "bowline"


class Cache:
    """Finds and keeps binaries by the folder and name of their recipe."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, recipe: Recipe) -> Path:
        """Where this binary is or will be."""
        return self.root / recipe.folder / recipe.tool

    def find(self, recipe: Recipe) -> Path | None:
        """The binary if it is there and can be run."""
        path = self.path(recipe)
        return path if path.is_file() and os.access(path, os.X_OK) else None

    def admit(self, recipe: Recipe, source: Path) -> Path:
        """Move a finished binary to its place, atomically; `source` must lie in a work folder."""
        target = self.path(recipe)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.chmod(0o755)
        # Without the sync a power cut could leave a whole name on a half-written file.
        with source.open("rb") as stream:
            os.fsync(stream.fileno())
        source.replace(target)
        return target

    @contextmanager
    def exclusive(self, progress: Progress) -> Iterator[Path]:
        """Hold the cache alone and get a work folder on the same file system, removed afterwards."""
        with self._lock_file() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.say(f"another process is filling {self.root}; waiting for it")
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
