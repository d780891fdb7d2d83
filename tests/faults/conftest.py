"""A separate cluster for tests that kill reconcilers."""

from collections.abc import Iterator

import pytest

from tests.faults.lab import Lab, open_lab


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    """The cluster with the chart; the tests start reconcilers."""
    with open_lab() as lab:
        yield lab
