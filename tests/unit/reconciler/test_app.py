"""The client of the reconciler, derived from its settings."""

import pytest

from reconciler.app import connections


@pytest.mark.parametrize(("workers", "expected"), [(1, 128), (64, 128), (65, 130), (1024, 2048)])
def test_workers_do_not_wait_for_connections(workers: int, expected: int) -> None:
    assert connections(workers) == expected
