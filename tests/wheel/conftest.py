"""The wheel of this checkout in an environment of its own, with the dependencies of the tests' environment."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with Bowline's wheel: no checkout, no editable install."""

    folder: Path
    wheel: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def types(self) -> Path:
        """The cache of mypy: checking a plugin reads the types of the whole package."""
        return self.folder / "types"

    def run(self, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run Python with arguments in a folder."""
        command = [str(self.python), *arguments]
        return subprocess.run(
            command, cwd=cwd, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel, and unpack it into a new environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A path in a .pth file is searched, but not for more .pth files: the editable install stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return Installed(folder / "env", wheel)
