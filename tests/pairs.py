"""A control plane with the chart installed and both processes running from it, and a test's own namespace on it.

Starting one takes seconds, so fixtures keep it for a session, and tests are separated by namespaces.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bowline.framework.workload_kinds import READY
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import find_helm
from bowline.localcluster.pair import CHART, Pair, PairOptions
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import WorkloadOptions
from tests.live import Live
from tests.pod_groups import WITH_POD_GROUPS, serves_pod_groups
from tools.generate import crd

# A leader that gets no CPU keeps its Lease: a new term would repeat calls that tests count.
_LONG_LEASE = {"config.leaderElection": {"leaseDuration": "60s", "renewDeadline": "50s"}}


# The configuration for the tests' plugins; everything else is the chart's default.
TEST_CONFIG = {
    "config.plugins": [{"name": "example_flaky"}],
    # Long for an agent that starts on a loaded machine, and short for a test with a silent one.
    "config.gpuSharing": {"agentTimeout": "30s"},
    # Kinds of other projects, whose CRDs tests install; a hook for a kind that does not exist costs nothing.
    "config.workloads": [
        *(
            {"kind": ready.kind, "group": ready.group, "action": "Warn" if ready.kind == "RayCluster" else "Deny"}
            for ready in READY
        ),
        {
            **{"kind": "Own", "group": "example.com", "resource": "owns", "templates": ["spec.pod"]},
            "podSpecs": [{"path": "spec.podSpec", "metadata": "spec"}],
        },
    ],
    # A reconciler waits this long after its start before the first rollback, because of its predecessor's Bindings.
    "config.binding.inFlightTimeout": "2s",
}

_TIMEOUT = re.compile(r"timeoutSeconds: \d+")


def patient_chart(source: Path, target: Path) -> Path:
    """Copy a chart, with the longest timeout of webhooks instead of its own; return the copy.

    On a busy machine a reply may take seconds. The mutation would be skipped, and a pod with a share denied.
    """
    shutil.copytree(source, target)
    for template in (path for path in (target / "templates").rglob("*") if path.is_file()):
        template.write_text(_TIMEOUT.sub("timeoutSeconds: 30", template.read_text()))
    return target


def local_chart(cluster: Cluster) -> Path:
    """Return such a copy of the chart, in the cluster's folder."""
    chart = cluster.data_dir / "chart"
    return chart if chart.exists() else patient_chart(CHART, chart)


def _bare() -> ClusterSpec:
    """No controllers; PodGroups of Kubernetes where it has them."""
    if not serves_pod_groups(release_for(None, os.environ)):
        return ClusterSpec(kwok=False, controllers=())
    groups = WITH_POD_GROUPS
    return ClusterSpec(
        kwok=False, controllers=(), runtime_config=groups.runtime_config, feature_gates=groups.feature_gates
    )


@contextmanager
def bare_control_plane() -> Iterator[Cluster]:
    """Start a control plane with three nodes and the CRD; no controller changes an object."""
    with Cluster.start(_bare()) as cluster:
        cluster.make_nodes(3)
        # As a chart install does it: server-side, unknown fields rejected.
        cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", input=crd.as_yaml())
        cluster.wait_established(crd.custom_resource_definition()["metadata"]["name"])
        yield cluster


@contextmanager
def running_pair(
    nodes: int, values: Mapping[str, object], process: WorkloadOptions | None = None
) -> Iterator[tuple[Cluster, Pair]]:
    """Start everything, the chart installed with these values, until the block ends."""
    with Cluster.start(ClusterSpec(audit="Metadata")) as cluster:
        cluster.make_nodes(nodes)
        cluster.make_runtime_class()
        yield cluster, installed_pair(cluster, values, process)


def installed_pair(cluster: Cluster, values: Mapping[str, object], process: WorkloadOptions | None = None) -> Pair:
    """Install the chart with these values and start both processes."""
    options = PairOptions(chart=local_chart(cluster), set_values={**_LONG_LEASE, **values})
    pair = Pair.install(cluster, find_helm(), options)
    pair.start(process)
    return pair


@contextmanager
def own_namespace(cluster: Cluster, pair: Pair) -> Iterator[Live]:
    """The pair in a new namespace, which is deleted at the end of the block, without waiting."""
    live = Live(cluster, f"test-{uuid.uuid4().hex[:8]}", pair)
    cluster.make_namespace(live.namespace)
    try:
        yield live
    finally:
        cluster.api.delete(f"/api/v1/namespaces/{live.namespace}")
