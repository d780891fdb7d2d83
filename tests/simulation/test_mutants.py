"""The power of the checks: a defect in the product is found; ``make simulate-mutants`` has all of them."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["a rollback does nothing", "a gang is always complete"])
def test_a_defect_in_the_product_is_found(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation", "mutants", "--only", name, "--runs", "10"]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: found as " in done.stdout
