"""The exit status of `make` is that of the command."""

import subprocess
from pathlib import Path

import pytest

from tests.localcluster.conftest import MakeScript
from tests.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


def down(venv: Path) -> "subprocess.CompletedProcess[str]":
    words = ["make", "down", f"VENV={venv}"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("status", [0, 1])
def test_down_ends_as_the_command_does(tmp_path: Path, make_script: MakeScript, status: int) -> None:
    make_script(tmp_path / "bin" / "python", f"exit {status}")
    result = down(tmp_path)
    assert (result.returncode != 0) == (status != 0)
    assert "nothing was set up" not in result.stdout


def test_down_without_a_setup_has_nothing_to_end(tmp_path: Path) -> None:
    result = down(tmp_path)
    assert result.returncode == 0
    assert "nothing was set up" in result.stdout
