"""The Dockerfile, as far as it can be checked without a container engine: pinned, not root, as the chart expects."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()


def of(instruction: str) -> list[str]:
    return [line.removeprefix(instruction + " ") for line in LINES if line.startswith(instruction + " ")]


def test_the_constraints_are_the_locked_versions(tmp_path: Path) -> None:
    locked = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    (command,) = (line for line in of("RUN") if "constraints.txt" in line)
    program = re.search(r"sed -n '(.*)' /runtime.txt", command)
    assert program is not None
    result = subprocess.run(["sed", "-n", program[1]], input=locked, capture_output=True, text=True, check=True)
    names = re.findall(r"^[a-z].*?==\S+", locked, re.MULTILINE)
    assert result.stdout.splitlines() == names
    assert len(names) > 5
