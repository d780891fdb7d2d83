"""A real API server for tests of plugins: with three nodes and BindRequest's CRD."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import CHART
from bowline.localcluster.spec import ClusterSpec

_CRD = CHART / "files" / "bindrequests.yaml"


@contextmanager
def bare_api_server(controllers: Sequence[str] = ()) -> Iterator[Cluster]:
    """Start it until the block ends, with these controllers of kube-controller-manager; without any no object changes
    by itself. The binaries are those of the cache, or supplied as for the local cluster.
    """
    with Cluster.start(ClusterSpec(kwok=False, controllers=tuple(controllers))) as cluster:
        cluster.make_nodes(3)
        # As a chart install does it: server-side, unknown fields rejected.
        cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", str(_CRD))
        cluster.wait_established("bindrequests.scheduling.run.ai")
        yield cluster
