"""A separate cluster for tests that kill reconcilers.

The complete crash matrix takes minutes: its tests have the marker ``faults`` and run only with ``-m``.
"""

from collections.abc import Iterator

import pytest

from tests.faults.endstate import leftovers
from tests.faults.lab import PLUGINS_CONFIG, Lab, open_lab
from tests.faults.truth import TruthObserver


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "faults: the whole crash matrix; run with -m faults")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the matrix unless its marker is selected."""
    if "faults" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("faults")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The cluster with the chart; the tests start reconcilers."""
    with open_lab(PLUGINS_CONFIG) as lab:
        yield lab


@pytest.fixture
def truth(lab: Lab) -> Iterator[TruthObserver]:
    """Fails the test at the first false claim."""
    with TruthObserver(lab.cluster, leftovers) as observer:
        yield observer
