"""A cluster of their own for tests that kill reconcilers."""

from collections.abc import Iterator

import pytest

from tests.faults.endstate import leftovers
from tests.faults.lab import Lab, open_lab
from tests.faults.truth import TruthObserver


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The cluster with the chart; reconcilers are started by the tests."""
    with open_lab() as opened:
        yield opened


@pytest.fixture
def truth(lab: Lab) -> Iterator[TruthObserver]:
    """Fails the test at the first false claim."""
    with TruthObserver(lab.cluster, leftovers) as observer:
        yield observer
