"""The client of the reconciler, derived from its settings."""

import pytest

from bowline_reconciler.app import connections


@pytest.mark.parametrize(("workers", "expectation"), [(1, 128), (21, 128), (22, 132), (64, 384)])
def test_neither_workers_nor_slow_reconciles_wait_for_connections(workers: int, expectation: int) -> None:
    assert connections(workers) == expectation
