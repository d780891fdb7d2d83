"""The chart, rendered by the real Helm, and a real API server to install it on."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import Helm, find_helm
from bowline.localcluster.spec import ClusterSpec
from tests.chart.rendering import NAMESPACE, RELEASE, Chart, Rendered


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart of the checkout."""
    return Chart(find_helm())


@pytest.fixture(scope="session")
def helm_command(chart: Chart) -> Helm:
    """The helm command."""
    return chart.helm


@pytest.fixture(scope="session")
def manifests(chart: Chart) -> Rendered:
    """The chart with its own values."""
    return chart.render()


@pytest.fixture(scope="session")
def chart_cluster() -> Iterator[Cluster]:
    """A control plane for installing the chart, with the one controller that aggregates ClusterRoles."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=("clusterrole-aggregation-controller",))) as cluster:
        cluster.make_namespace(NAMESPACE)
        # The chart creates this namespace and keeps it. Here it exists before, as the release's: some tests apply
        # objects in it without installing the chart, and no controller would ever complete its deletion.
        ours = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
        labels = {"app.kubernetes.io/managed-by": "Helm"}
        reservations = {"name": "kai-resource-reservation", "labels": labels, "annotations": ours}
        cluster.api.post("/api/v1/namespaces", {"metadata": reservations})
        yield cluster
