"""A device that was tainted after the decision is refused by the running reconciler, on a real API server.

DeviceTaintRules are served in v1 from Kubernetes 1.37 on; without them that case is skipped.
"""

import json
from collections.abc import Iterator

import pytest

from bowline.kube.resources import DEVICETAINTRULES, RESOURCESLICES, Resource
from bowline.localcluster.cluster import Cluster
from tests.live import Live
from tests.plugins.claims import API, DRIVER, NODE, claim, claim_decisions, publish

TAINT = {"key": "broken", "effect": "NoSchedule"}
RULE = {"deviceSelector": {"driver": DRIVER, "device": "d0"}, "taint": TAINT}


def require_rules(cluster: Cluster) -> None:
    """Skip the test if the API server does not serve DeviceTaintRules in Bowline's version."""
    if DEVICETAINTRULES.plural not in {entry["name"] for entry in cluster.api.get(API)["resources"]}:
        pytest.skip("this Kubernetes does not serve DeviceTaintRules in v1")


@pytest.fixture
def tainted_by_driver(pair: Live) -> Iterator[Live]:
    """The pair, with the device d0 tainted in its ResourceSlice."""
    publish(pair.cluster)
    path = f"{API}/resourceslices/{NODE}-{DRIVER}"
    devices = pair.cluster.api.get(path)["spec"]["devices"]
    devices[0]["taints"] = [TAINT]
    pair.cluster.api.patch(path, {"spec": {"devices": devices}})
    yield pair
    publish(pair.cluster)


@pytest.fixture
def tainted_by_rule(pair: Live) -> Iterator[Live]:
    """The pair, with the device d0 tainted by an administrator."""
    publish(pair.cluster)
    require_rules(pair.cluster)
    path = f"{API}/{DEVICETAINTRULES.plural}"
    pair.cluster.api.post(path, {"metadata": {"name": "test"}, "spec": RULE})
    yield pair
    pair.cluster.api.delete(f"{path}/test")


def cached_by(live: Live, resource: Resource) -> int:
    """The number of tainted objects in the reconciler's cache: an optional watch has no metrics."""
    _, page = live.pair.reconcilers[0].get_debug()
    watches = json.loads(page)["watches"].values()
    return sum(watch["objects"] for watch in watches if watch["selection"] == str(resource))


@pytest.mark.parametrize(
    ("source", "resource"),
    [
        pytest.param("tainted_by_driver", RESOURCESLICES, id="by the driver"),
        pytest.param("tainted_by_rule", DEVICETAINTRULES, id="by a rule"),
    ],
)
def test_the_running_reconciler_refuses_a_tainted_device(
    request: pytest.FixtureRequest, source: str, resource: Resource
) -> None:
    """With the rights of the chart: to watch taints, and to read the one in the cache before it ends a request."""
    live: Live = request.getfixturevalue(source)
    live.until(f"the reconciler caches the {resource.kind}", lambda: cached_by(live, resource) == 1)
    live.create(claim("one"))
    live.create_pod(resourceClaims=[{"name": "dev", "resourceClaimName": "one"}])
    live.request_bind(**claim_decisions("d0"))
    reason = live.phase("pod", "Failed", "Succeeded")["status"].get("reason", "")
    assert f"device {DRIVER}/{NODE}/d0 has the taint broken:NoSchedule ({resource.kind} " in reason
