"""Container images of the node, without a registry: Bowline's from its own Dockerfile, and the pause image.

The Dockerfile's base image is pulled if a registry is reachable, else built from Debian packages and the running
Python. Archives are cached under a digest of all their inputs.
"""

import fcntl
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bowline.localcluster.assets.cache import cache_root
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.errors import AssetsError
from tests.localnode.settings import PAUSE_IMAGE

# What .dockerignore admits to the build, without README.md: it is only the wheel's description.
_BUILD_INPUTS = ("Dockerfile", ".dockerignore", "pyproject.toml", "LICENSE", "requirements")
_BUILD_PACKAGES = ("charts/bowline", "cli", "reconciler", "shared", "webhook")
BOWLINE_IMAGE = "localhost/bowline:node"
_PYTHON_IMAGE = f"localhost/python:{sys.version_info.major}.{sys.version_info.minor}"
_PUBLIC_PYTHON = "docker.io/library/python:3.13-slim"
# The libraries that CPython's own extension modules link against.
_DEBIAN_PACKAGES = (
    "ca-certificates,libssl3,libffi8,zlib1g,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libncursesw6,libuuid1"
)
_DEBIAN = "bookworm"
# As in the official slim images: no documentation, no translations, stripped libraries.
_LEFT_OUT = ("__pycache__", "test", "idlelib", "*.a", "site-packages", "share", "include")
_COMMAND_TIMEOUT_S = 1200
# Other checkouts use the same store, and import an archive after this module has returned its path.
_KEPT_ARCHIVES = 5
_KEPT_S = 3600.0


class Images:
    """Builds images that are not cached. Raises AssetsError with the end of a failed command's output."""

    def __init__(self, cache: Path, pause: Path, progress: Progress) -> None:
        self._cache = cache
        self._pause = pause
        self._progress = progress
        self._store = cache / "images"

    def archives(self) -> list[Path]:
        """Return OCI archives for `ctr images import`, the small one first."""
        self._store.mkdir(parents=True, exist_ok=True)
        # One build at a time: checkouts share the tags in buildah's store.
        with (self._store / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return [self._pause_archive(), self._bowline_archive()]
            finally:
                # buildah mounts its store over itself and leaves that mount behind.
                while os.path.ismount(self._store / "storage" / "overlay"):
                    self._run(["umount", str(self._store / "storage" / "overlay")])

    def _pause_archive(self) -> Path:
        digest = hashlib.sha256(self._pause.read_bytes()).hexdigest()[:16]
        archive = self._store / f"pause-{digest}.tar"
        if not archive.is_file():
            with _Folder(self._store) as folder:
                shutil.copy(self._pause, folder / "pause")
                (folder / "Containerfile").write_text(
                    'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
                )
                self._bud(folder, PAUSE_IMAGE, folder / "Containerfile")
                self._push(PAUSE_IMAGE, archive)
        return archive

    def _bowline_archive(self) -> Path:
        archive = self._store / f"bowline-{source_digest(CHECKOUT)}.tar"
        if not archive.is_file():
            base = self._base()
            self._progress.report("image bowline: the Dockerfile is built")
            former = self._entry(BOWLINE_IMAGE, "id")
            # With its layers cached, a change of Bowline's own sources does not install the dependencies again.
            arguments = ["--layers=true", f"--build-arg=PYTHON_IMAGE={base}"]
            self._bud(CHECKOUT, BOWLINE_IMAGE, CHECKOUT / "Dockerfile", [*arguments, *_host_files()])
            self._push(BOWLINE_IMAGE, archive)
            if former not in (None, self._entry(BOWLINE_IMAGE, "id")):
                self._try(["buildah", *self._global(), "rmi", str(former)], 60)
        archive.touch()
        used = {path: path.stat().st_mtime for path in self._store.glob("bowline-*.tar")}
        for old in archives_to_delete(used, time.time()):
            old.unlink()
        return archive

    def _base(self) -> str:
        """Return NAME@DIGEST of a Python image in buildah's store."""
        name = _PYTHON_IMAGE
        if self._entry(name, "digest") is None:
            is_pulled = self._try(["buildah", *self._global(), "pull", "--quiet", "--retry=0", _PUBLIC_PYTHON], 60)
            if is_pulled:
                name = _PUBLIC_PYTHON
            else:
                self._build_base()
        digest = self._entry(name, "digest")
        if digest is None:
            raise AssetsError(f"buildah has no digest of {name}")
        return f"{name}@{digest}"

    def _build_base(self) -> None:
        prefix = Path(sys.base_prefix)
        if prefix == Path("/usr"):
            raise AssetsError(
                "no registry answers, and the Python that runs this is the system's, which cannot be copied into an"
                " image; use one with a prefix of its own (pyenv, uv) or load docker.io/library/python:3.13-slim"
            )
        self._progress.report("image python: no registry answers; built from Debian packages and this Python")
        with _Folder(self._store) as folder:
            root = folder / "root"
            exclusions = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
            include = f"--include={_DEBIAN_PACKAGES}"
            self._run(["mmdebstrap", "--variant=minbase", include, *exclusions, _DEBIAN, str(root)])
            ignore = shutil.ignore_patterns(*_LEFT_OUT)
            shutil.copytree(prefix, root / "usr/local", symlinks=True, ignore=ignore, dirs_exist_ok=True)
            interpreter = root / "usr/local/bin"
            for script in interpreter.iterdir():
                if not script.name.startswith("python"):
                    script.unlink()
            (library,) = (root / "usr/local/lib").glob("python3.*")
            (library / "site-packages").mkdir()
            libraries = [str(path) for path in (root / "usr/local").rglob("*.so*") if not path.is_symlink()]
            self._run(["strip", "--strip-unneeded", *libraries])
            self._run(["chroot", str(root), "ldconfig"])
            self._run(["chroot", str(root), "python3", "-m", "ensurepip", "--default-pip"])
            self._run(["chroot", str(root), "python3", "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"])
            for module in ("ensurepip", "lib2to3", "pydoc_data", "turtledemo"):
                shutil.rmtree(library / module, ignore_errors=True)
            for name in ("python", "pip"):
                if not (interpreter / name).exists():
                    (interpreter / name).symlink_to(f"{name}3")
            shutil.rmtree(root / "dev")
            (root / "dev").mkdir()
            text = 'FROM scratch\nCOPY root /\nENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8\nCMD ["python3"]\n'
            (folder / "Containerfile").write_text(text)
            self._bud(folder, _PYTHON_IMAGE, folder / "Containerfile")

    def _bud(self, context: Path, tag: str, file: Path, more: Sequence[str] = ()) -> None:
        options = ["--isolation=chroot", "--pull-never", "--format=oci", f"--tag={tag}", *more]
        self._run(["buildah", *self._global(), "bud", *options, f"--file={file}", str(context)])

    def _push(self, image: str, archive: Path) -> None:
        part = archive.with_name(f".{archive.name}.part")
        part.unlink(missing_ok=True)
        self._run(["buildah", *self._global(), "push", "--quiet", image, f"oci-archive:{part}:{image}"])
        part.rename(archive)

    def _entry(self, image: str, key: str) -> str | None:
        """Return the id or digest of an image in buildah's store; None if it is not there."""
        result = subprocess.run(
            ["buildah", *self._global(), "images", "--json", image], capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            return None
        return next((str(entry[key]) for entry in json.loads(result.stdout)), None)

    def _global(self) -> list[str]:
        return [f"--root={self._store / 'storage'}", f"--runroot={self._store / 'run'}", "--storage-driver=overlay"]

    def _run(self, command: Sequence[str]) -> None:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S, env=_environment()
        )
        if result.returncode != 0:
            tail = "\n".join((result.stdout + result.stderr).splitlines()[-25:])
            raise AssetsError(f"`{' '.join(command[:2])} …` ended with {result.returncode}:\n{tail}")

    def _try(self, command: Sequence[str], timeout_s: float) -> bool:
        try:
            result = subprocess.run(command, capture_output=True, check=False, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return result.returncode == 0


class _Folder:
    """A work folder in the cache, removed afterwards; its Path is the value of the `with` block."""

    def __init__(self, parent: Path) -> None:
        self._path = Path(tempfile.mkdtemp(prefix=".work-", dir=parent))

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def has_image() -> bool:
    """Return whether an image of Bowline was built on this machine before, so that a build needs no base image."""
    return any((cache_root(os.environ) / "images").glob("bowline-*.tar"))


def archives_to_delete(used: Mapping[Path, float], now: float) -> list[Path]:
    """Return the archives to delete: neither among the most recently used nor used in the last hour.

    used: the time of each archive's last use, in seconds since the epoch.
    """
    newest_first = sorted(used, key=lambda path: used[path], reverse=True)
    return [path for path in newest_first[_KEPT_ARCHIVES:] if now - used[path] > _KEPT_S]


def source_digest(checkout: Path) -> str:
    """Return a digest of everything that the Dockerfile's build reads, and of the interpreter it is based on."""
    total = hashlib.sha256(sys.version.encode())
    for path in _inputs(checkout):
        total.update(f"{path.relative_to(checkout)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def _inputs(checkout: Path) -> Iterable[Path]:
    for name in (*_BUILD_INPUTS, *_BUILD_PACKAGES):
        path = checkout / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and not {"tests", "__pycache__"} & set(file.relative_to(checkout).parts):
                yield file


def _host_files() -> list[str]:
    """Return volumes for the build: the host's certificates and pip settings, which its network may need."""
    paths = ssl.get_default_verify_paths()
    candidates = [paths.cafile and str(Path(paths.cafile).parent), "/etc/ssl/certs", "/etc/pip.conf"]
    present = dict.fromkeys(path for path in candidates if path and Path(path).exists())
    return [f"--volume={path}:{path}:ro" for path in present]


def _environment() -> dict[str, str]:
    return {**os.environ, "BUILDAH_ISOLATION": "chroot"}
