"""Versions of installed distributions: those of this environment, and what a plugin's dependencies may replace."""

import os
import re
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest

from bowline.framework.installed import version_errors
from bowline.runtime.version import DISTRIBUTION

AIOHTTP = version("aiohttp")


def test_the_versions_of_the_locks_are_within_the_ranges() -> None:
    assert [str(error) for error in version_errors()] == []


def test_every_range_of_bowline_is_compared() -> None:
    own = [line.partition(";")[0].strip() for line in requires(DISTRIBUTION) or ()]
    bounds = r"((>=|<)\d+(\.\d+)*)(,(>=|<)\d+(\.\d+)*)*"
    unbounded = {line for line in own if not re.fullmatch(rf"[A-Za-z0-9-]+{bounds}", line)}
    assert unbounded == {"types-pyyaml"}


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        pytest.param("aiohttp>=3.0", True, id="above the lower bound"),
        pytest.param(f"aiohttp>={AIOHTTP}", True, id="the lower bound"),
        pytest.param(f"aiohttp<{AIOHTTP}", False, id="the upper bound"),
        pytest.param("aiohttp<3.10,>=3.9", False, id="above both"),
        pytest.param("aiohttp>=999", False, id="below"),
        pytest.param("aiohttp>=999; extra == 'tracing'", False, id="of an extra that is installed"),
        pytest.param("no-such-distribution>=1; extra == 'tracing'", True, id="of an extra that is not installed"),
        pytest.param("aiohttp", True, id="without bounds"),
    ],
)
def test_ranges(requirement: str, is_met: bool, tmp_path: Path) -> None:
    errors = version_errors([requirement], tmp_path / "none")
    assert [(error.path, error.value) for error in errors] == [] if is_met else [("installed[aiohttp]", AIOHTTP)]


def test_in_an_image_the_lock_holds(tmp_path: Path) -> None:
    lock = tmp_path / "constraints.txt"
    lock.write_text(f"aiohttp=={AIOHTTP}\npydantic==2.9.2\nno-such-distribution==1.0\n")
    (error,) = version_errors(["aiohttp>=3.0", "pydantic>=2.0"], lock)
    assert error.path == "installed[pydantic]"
    assert "must be 2.9.2, to which this image is locked" in error.message
    assert f"--constraint={lock}" in error.message


def replaced(folder: Path, name: str, text: str) -> dict[str, str]:
    """Return an environment in which a distribution has another version."""
    metadata = folder / f"{name}-{text}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {text}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


@pytest.mark.parametrize(
    ("command", "status"),
    [
        pytest.param(["bowline_webhook", "--check"], 2, id="webhook"),
        pytest.param(["bowline_reconciler", "--check"], 2, id="reconciler"),
        pytest.param(
            ["bowline_cli", "plugin", "check", "--no-cluster", "bowline.plugins.numa_placement:NumaPlacement"],
            1,
            id="plugin check",
        ),
    ],
)
def test_every_check_names_a_dependency_that_was_replaced(command: list[str], status: int, tmp_path: Path) -> None:
    environment = replaced(tmp_path, "aiohttp", "3.9.5")
    completion = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=False
    )
    assert completion.returncode == status, completion
    assert 'installed[aiohttp]: "3.9.5": must be <3.15,>=3.14' in completion.stdout + completion.stderr
