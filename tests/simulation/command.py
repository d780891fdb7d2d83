"""The simulation as tests call it: in a process of its own, because equal runs need a fixed hash seed."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a series of runs has shown. ``violations``: by kind, the commands that repeat them, with text and time."""

    totals: dict[str, int]
    counts: dict[str, int]
    violations: dict[str, list[Any]]


def simulate(*arguments: str) -> Outcome:
    """Run ``python -m tests.simulation`` with these arguments."""
    command = [sys.executable, "-m", "tests.simulation", *arguments, "--json", "--processes=1"]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    # It ends with 1 if there are violations; what they are is in its output.
    completion = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert completion.returncode in (0, 1), completion.stderr
    return Outcome(**json.loads(completion.stdout))
