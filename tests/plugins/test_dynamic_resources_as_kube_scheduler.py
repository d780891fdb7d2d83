"""A claim bound by Bowline next to one bound by kube-scheduler: they must not differ.

kube-scheduler decides and binds a pod with a claim; the plugin then executes its decision for a second pod with an
equal claim, and the two claims are compared field by field. So is the claim that it creates for extended
resources.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
from bowline.shared.framework.status import Status
from bowline.shared.kube.config import load_access
from tests.live import LiveCluster
from tests.plugins.claim_case import Case, CrashingClient, new_plugin
from tests.plugins.claims import API, CLASS, claim, get_claim, publish
from tests.plugins.kube_scheduler import bound, needs_kube_scheduler

pytestmark = needs_kube_scheduler

RESOURCE = "gpu.example.com/gpu"
LIMITED = [{"name": "main", "image": "registry.example/app:1", "resources": {"limits": {RESOURCE: "1"}}}]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveCluster]:
    """A control plane with the real kube-scheduler."""
    with Cluster.start(ClusterSpec(scheduler=True)) as cluster:
        cluster.make_nodes(1)
        publish(cluster)
        cluster.api.patch(f"{API}/deviceclasses/{CLASS}", {"spec": {"extendedResourceName": RESOURCE}})
        yield LiveCluster(cluster, "default")


@pytest.fixture
async def case(live: LiveCluster) -> AsyncIterator[Case]:
    """The arguments of the plugin's calls on that cluster."""
    client = CrashingClient(await load_access(live.cluster.kubeconfig))
    async with client:
        yield Case(client, live.namespace)


def comparable(stored: dict[str, Any]) -> dict[str, Any]:
    """The claim without the parts that must differ: its own and its pod's identity, times, the device itself."""
    status = dict(stored["status"])
    (result,) = status["allocation"]["devices"]["results"]
    assert result.pop("device")
    assert status["allocation"].pop("allocationTimestamp")
    for entry in status["reservedFor"]:
        assert entry.pop("name")
        assert entry.pop("uid")
    metadata = {key: stored["metadata"].get(key) for key in ("finalizers", "annotations")}
    owners = [{**owner, "name": "", "uid": ""} for owner in stored["metadata"].get("ownerReferences") or ()]
    return {"metadata": metadata, "owners": owners, "spec": stored["spec"], "status": status}


async def test_a_claim_has_the_fields_that_kube_scheduler_sets(live: LiveCluster, case: Case) -> None:
    live.create(claim("theirs"), claim("ours"))
    live.create_pod("theirs", schedulerName="default-scheduler", resourceClaims=claim_refs("theirs"))
    bound(live, "theirs")
    theirs = get_claim(live, "theirs")
    decision = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    created_pod = await case.pod("ours", resourceClaims=claim_refs("ours"))
    context = await case.context(created_pod, resourceClaimAllocations=[{"name": "dev", "allocation": decision}])
    assert await (await new_plugin(case.client)).pre_bind(context) == Status.ok()
    assert comparable(await case.claim("ours")) == comparable(theirs)


async def test_a_claim_of_extended_resources_equals_kube_schedulers(live: LiveCluster, case: Case) -> None:
    live.create_pod("their-ext", schedulerName="default-scheduler", containers=LIMITED)
    expected = bound(live, "their-ext")["status"]["extendedResourceClaimStatus"]
    theirs = get_claim(live, expected["resourceClaimName"])
    allocation = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    extended_decision = {
        "allocation": allocation,
        "deviceRequests": theirs["spec"]["devices"]["requests"],
        "containerMappings": expected["requestMappings"],
    }
    created_pod = await case.pod("our-ext", containers=LIMITED)
    context = await case.context(created_pod, extendedResourceClaimAllocation=extended_decision)
    assert await (await new_plugin(case.client)).pre_bind(context) == Status.ok()
    status = (await case.context(created_pod)).pod["status"]["extendedResourceClaimStatus"]  # type: ignore[index]
    assert status["requestMappings"] == expected["requestMappings"]
    ours = await case.claim(status["resourceClaimName"])
    assert ours["metadata"]["generateName"] == theirs["metadata"]["generateName"].replace("their", "our")
    assert comparable(ours) == comparable(theirs)


def claim_refs(name: str) -> list[dict[str, str]]:
    return [{"name": "dev", "resourceClaimName": name}]
