"""A claim after Bowline's hands beside one after kube-scheduler's: nobody may be able to tell them apart.

kube-scheduler decides and binds a pod with a claim; its decision is then carried out by the plugin for a second pod
with a claim just like it, and the two claims are compared field by field. So is the claim it makes up for extended
resources.
"""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from localcluster.cluster import Cluster
from localcluster.spec import ClusterSpec
from shared.framework.status import Status
from shared.kube.config import load_access
from shared.testing.builders import pod
from tests.plugins.claims import API, CLASS, claim, publish
from tests.plugins.kube_scheduler import needs_kube_scheduler
from tests.plugins.test_dynamic_resources_steps import Case, CrashingClient, new_plugin

pytestmark = needs_kube_scheduler

RESOURCE = "gpu.example.com/gpu"
LIMITED = [{"name": "main", "image": "registry.example/app:1", "resources": {"limits": {RESOURCE: "1"}}}]
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def scheduled() -> Iterator[Cluster]:
    """A control plane with the real kube-scheduler."""
    with Cluster.start(ClusterSpec(scheduler=True)) as started:
        started.make_nodes(1)
        publish(started)
        started.api.patch(f"{API}/deviceclasses/{CLASS}", {"spec": {"extendedResourceName": RESOURCE}})
        yield started


@pytest.fixture
async def case(scheduled: Cluster) -> AsyncIterator[Case]:
    """What the plugin is called with there."""
    client = CrashingClient(await load_access(scheduled.kubeconfig))
    async with client:
        yield Case(client, "default")


def until_bound(cluster: Cluster, name: str) -> dict[str, Any]:
    """Wait until kube-scheduler has bound the pod."""

    deadline = time.monotonic() + DEADLINE_S
    while True:
        found: dict[str, Any] = cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")
        if found["spec"].get("nodeName"):
            return found
        assert time.monotonic() < deadline, f"kube-scheduler has not bound the pod: {found['status']}"
        time.sleep(0.05)


def comparable(stored: dict[str, Any]) -> dict[str, Any]:
    """The claim without what must differ: its own and its pod's identity, times, the device itself."""
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


async def test_a_claim_is_left_as_kube_scheduler_leaves_it(scheduled: Cluster, case: Case) -> None:
    path = f"{API}/namespaces/default/resourceclaims"
    for name in ("theirs", "ours"):
        scheduled.api.post(path, claim(name))
    wanted = pod("theirs", schedulerName="default-scheduler", resourceClaims=claimed("theirs"))
    scheduled.api.post("/api/v1/namespaces/default/pods", wanted)
    until_bound(scheduled, "theirs")
    theirs = scheduled.api.get(f"{path}/theirs")
    decision = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    made = await case.pod("ours", resourceClaims=claimed("ours"))
    context = await case.context(made, resourceClaimAllocations=[{"name": "dev", "allocation": decision}])
    assert await (await new_plugin(case.client)).pre_bind(context) == Status.ok()
    assert comparable(await case.claim("ours")) == comparable(theirs)


async def test_a_claim_of_extended_resources_is_what_kube_scheduler_makes(scheduled: Cluster, case: Case) -> None:
    scheduled.api.post(
        "/api/v1/namespaces/default/pods", pod("their-ext", schedulerName="default-scheduler", containers=LIMITED)
    )
    told = until_bound(scheduled, "their-ext")["status"]["extendedResourceClaimStatus"]
    theirs = scheduled.api.get(f"{API}/namespaces/default/resourceclaims/{told['resourceClaimName']}")
    decision = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    extended = {
        "allocation": decision,
        "deviceRequests": theirs["spec"]["devices"]["requests"],
        "containerMappings": told["requestMappings"],
    }
    made = await case.pod("our-ext", containers=LIMITED)
    context = await case.context(made, extendedResourceClaimAllocation=extended)
    assert await (await new_plugin(case.client)).pre_bind(context) == Status.ok()
    status = (await case.context(made)).pod["status"]["extendedResourceClaimStatus"]  # type: ignore[index]
    assert status["requestMappings"] == told["requestMappings"]
    ours = await case.claim(status["resourceClaimName"])
    assert ours["metadata"]["generateName"] == theirs["metadata"]["generateName"].replace("their", "our")
    assert comparable(ours) == comparable(theirs)


def claimed(name: str) -> list[dict[str, str]]:
    return [{"name": "dev", "resourceClaimName": name}]
