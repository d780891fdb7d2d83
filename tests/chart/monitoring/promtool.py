"""promtool: that on PATH, else that of Debian's package prometheus, unpacked into the cache of binaries."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bowline.localcluster.assets.cache import cache_root

_TIMEOUT_S = 300


def find_promtool() -> Path | None:
    """Return its path; None if this machine cannot get the package either."""
    if on_path := shutil.which("promtool"):
        return Path(on_path)
    target = cache_root(os.environ) / "prometheus" / "promtool"
    if not target.is_file() and shutil.which("apt-get"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            # On a new machine apt has no lists yet.
            if not _ran(folder, "apt-get", "download", "prometheus"):
                _ran(folder, "apt-get", "update")
                _ran(folder, "apt-get", "download", "prometheus")
            for package in Path(folder).glob("prometheus_*.deb"):
                if _ran(folder, "dpkg-deb", "--extract", package.name, "root"):
                    (Path(folder) / "root" / "usr" / "bin" / "promtool").replace(target)
    return target if target.is_file() else None


def _ran(folder: str, *command: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 0
