"""Fixtures of the local cluster's own tests: scripts in place of binaries, and one real cluster.

It is not the cluster that other tests share: these tests pause its kwok.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec

MakeScript = Callable[[Path, str], Path]


@pytest.fixture
def make_script() -> MakeScript:
    """Writes an executable shell script, in place of a binary."""

    def make(path: Path, body: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture(scope="package")
def own_cluster() -> Iterator[Cluster]:
    """A real control plane with kwok and two nodes, for this folder's tests only."""
    with Cluster.start(ClusterSpec()) as cluster:
        cluster.make_nodes(2)
        yield cluster
