"""Fixtures for the tests of plugins, by the entry point ``pytest11``: servers start when a test requests them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# pytest loads this module in every session; the fixtures load the rest.
if TYPE_CHECKING:
    from bowline.localcluster.cluster import Cluster
    from bowline.testing.attempts import Attempts, BindContexts
    from bowline.testing.fault_proxy.server import FaultProxy
    from bowline.testing.lab import Lab

__all__ = ["bind_context", "bowline_cluster", "bowline_fault_proxy", "bowline_lab", "run_attempt"]


@pytest.fixture(scope="session")
def bowline_cluster() -> "Iterator[Cluster]":
    """A real API server with BindRequest's CRD and three nodes."""
    from bowline.testing.servers import bare_api_server

    with bare_api_server() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bowline_lab(bowline_cluster: "Cluster") -> "Iterator[Lab]":
    """The API server behind a fault proxy: ``bowline.testing.lab.trial`` runs attempts of a plugin there."""
    from bowline.testing.lab import lab_on

    with lab_on(bowline_cluster) as lab:
        yield lab


@pytest.fixture
def bowline_fault_proxy(bowline_lab: "Lab") -> "Iterator[FaultProxy]":
    """The proxy of ``bowline_lab``; the rules of a test end with it."""
    yield bowline_lab.proxy
    bowline_lab.proxy.clear()


@pytest.fixture
def bind_context(bowline_lab: "Lab") -> "BindContexts":
    """A context for single calls: ``async with bind_context(Licence) as (plugin, ctx)``."""
    from bowline.testing.attempts import BindContexts

    return BindContexts(bowline_lab)


@pytest.fixture
def run_attempt(bowline_lab: "Lab") -> "Attempts":
    """One attempt of a plugin on the API server: ``async with run_attempt(Licence) as attempt``."""
    from bowline.testing.attempts import Attempts

    return Attempts(bowline_lab)
