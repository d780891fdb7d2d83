"""A separate cluster for tests that kill reconcilers.

The complete crash matrix takes minutes: its tests have the marker ``faults`` (``conftest.py`` of the checkout).
"""

from collections.abc import Iterator

import pytest

from tests.faults.endstate import leftovers
from tests.faults.lab import PLUGINS_CONFIG, Lab, open_lab
from tests.faults.truth import TruthObserver


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    """The cluster with the chart; the tests start reconcilers."""
    with open_lab(PLUGINS_CONFIG) as lab:
        yield lab


@pytest.fixture
def truth(lab: Lab) -> Iterator[TruthObserver]:
    """Fails the test at the first false claim."""
    with TruthObserver(lab.cluster, leftovers) as observer:
        yield observer
