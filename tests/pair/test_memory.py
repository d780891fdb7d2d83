"""Memory of the real reconciler beside large objects: it does not depend on how much tenants store."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.api import names
from bowline.api.quantity import parse_quantity
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import bind_request, pod
from tests.live import LiveCluster
from tests.pair.conftest import BareReconcilers
from tests.pairs import bare_control_plane
from tests.plugins.claims import API, has_api

# A control plane of its own with 300 MB of objects.
pytestmark = pytest.mark.long

# Nearly as large as the API server accepts the annotations of an object to be.
LARGE = {"tenant.example/notes": "x" * 250_000}
# Of each kind; 200 are 50 MB.
COUNT = 200
# Pods with so many values that they are not decoded; decoded, 10 would be 600 MB, more than the limit.
TINY = 10


def large_objects(node: str, *, device_claims: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and objects of the watched kinds that tenants and schedulers create."""
    core, group = "/api/v1/namespaces/default", f"/apis/{names.API_VERSION}/namespaces/default"
    for number in range(COUNT):
        gated_pod = pod(f"gated-{number}", schedulingGates=[{"name": "tenant.example/gate"}])
        sharing = pod(f"sharing-{number}", nodeName=node)
        sharing["metadata"]["labels"] = {names.LABEL_GPU_GROUP: f"group-{number}"}
        claim: dict[str, Any] = {
            "metadata": {"name": f"claim-{number}"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        volume: dict[str, Any] = {
            "metadata": {"name": f"volume-{number}"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/nowhere"},
            },
        }
        device_claim: dict[str, Any] = {"metadata": {"name": f"devices-{number}"}, "spec": {}}
        device_path = f"{API}/namespaces/default/resourceclaims"
        request = bind_request(f"gated-{number}", node)
        for path, body in (
            (f"{core}/pods", gated_pod),
            (f"{core}/pods", sharing),
            (f"{core}/persistentvolumeclaims", claim),
            ("/api/v1/persistentvolumes", volume),
            *([(device_path, device_claim)] if device_claims else []),
            (f"{group}/bindrequests", request),
        ):
            body["metadata"]["annotations"] = LARGE
            yield path, body


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with bare_control_plane() as cluster:
        # Not served before Kubernetes 1.34, where the reconciler then watches none.
        for path, body in large_objects("node-0", device_claims=has_api(cluster)):
            cluster.api.post(path, body)
        yield cluster


def test_the_peak_does_not_depend_on_the_objects_of_tenants(cluster: Cluster, tmp_path: Path) -> None:
    process = BareReconcilers(cluster, tmp_path).start("large")
    live = LiveCluster(cluster, "default")
    for number in range(COUNT):
        live.phase(f"gated-{number}", "Pending")
    assert peak(process) < limit() / 2
    process.stop()


def test_the_peak_does_not_depend_on_the_number_of_values(cluster: Cluster, tmp_path: Path) -> None:
    """A pod of 2.6 MB with 200,000 values takes 60 MB when decoded. It ends Invalid, and delays no other."""
    cluster.make_namespace("tiny")
    live = LiveCluster(cluster, "tiny")

    def create(name: str) -> None:
        body = pod(name, "tiny")
        body["spec"]["containers"][0]["env"] = [{"name": "A"}] * 200_000
        cluster.api.post("/api/v1/namespaces/tiny/pods", body)

    for number in range(TINY):
        create(f"before-{number}")
    process = BareReconcilers(cluster, tmp_path).start("values")
    create("after")
    live.create_pod("neighbour")
    for name in ("before-0", "after", "neighbour"):
        live.request_bind(name)
    live.phase("neighbour", "Succeeded")
    for name in ("before-0", "after"):
        assert live.phase(name, "Failed")["status"]["failure"]["reason"] == "Invalid"
    assert peak(process) < limit() / 2
    process.stop()


def peak(process: LocalProcess) -> int:
    """The most memory that the process has had, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def limit() -> Decimal:
    """The chart's memory limit, in bytes."""
    values = yaml.safe_load((CHECKOUT / "charts/bowline/values.yaml").read_text())
    return parse_quantity(values["reconciler"]["resources"]["limits"]["memory"])
