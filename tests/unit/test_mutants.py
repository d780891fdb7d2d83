"""The list of mutants: each still applies to the product, and names suites that exist."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]


def test_names_are_unique() -> None:
    assert [name for name, number in Counter(mutant.name for mutant in MUTANTS).items() if number > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_compiles_and_names_suites_that_exist(mutant: Mutant) -> None:
    text = mutant.apply(ROOT)
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")
    assert [path for path in (*mutant.unit_tests, *mutant.live) if not (ROOT / path).exists()] == []
