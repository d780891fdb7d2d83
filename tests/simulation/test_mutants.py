"""The power of the checks: every defect that is put into the product is found (``make simulate-mutants``)."""

import os
import subprocess
import sys

from tests.simulation.mutants import MUTANTS


def test_every_defect_in_the_product_is_found() -> None:
    command = [sys.executable, "-m", "tests.simulation", "mutants"]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    completion = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert completion.returncode == 0, completion.stdout + completion.stderr
    assert completion.stdout.count(": found as ") == len(MUTANTS)
