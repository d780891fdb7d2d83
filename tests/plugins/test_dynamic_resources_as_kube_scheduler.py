"""A claim bound by Bowline next to one bound by kube-scheduler: they must not differ.

kube-scheduler decides and binds a pod with a claim; the plugin then executes its decision for a second pod with an
equal claim, and the two claims are compared field by field. So is the claim that it creates for extended
resources.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bowline.framework.interface.status import Status, Waiting
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair
from tests.live import LiveCluster
from tests.plugins.claim_case import Case, new_plugin
from tests.plugins.claims import API, CLASS, NODE, claim, get_claim
from tests.plugins.kube_scheduler import bound, needs_kube_scheduler

pytestmark = needs_kube_scheduler

RESOURCE = "gpu.example.com/gpu"
LIMITED = [{"name": "main", "image": "registry.example/app:1", "resources": {"limits": {RESOURCE: "1"}}}]


@pytest.fixture(scope="module")
def live(beside_kube_scheduler: tuple[Cluster, Pair]) -> LiveCluster:
    """A control plane with the real kube-scheduler, and extended resources."""
    cluster, _ = beside_kube_scheduler
    cluster.api.patch(f"{API}/deviceclasses/{CLASS}", {"spec": {"extendedResourceName": RESOURCE}})
    return LiveCluster(cluster, "default")


@pytest.fixture
async def case(live: LiveCluster) -> AsyncIterator[Case]:
    """The arguments of the plugin's calls on that cluster."""
    client = KubeClient(load_access(api_server(live.cluster.kubeconfig)))
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
    their_status = bound(live, "their-ext")["status"]["extendedResourceClaimStatus"]
    theirs = get_claim(live, their_status["resourceClaimName"])
    allocation = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    extended_decision = {
        "allocation": allocation,
        "deviceRequests": theirs["spec"]["devices"]["requests"],
        "containerMappings": their_status["requestMappings"],
    }
    created_pod = await case.pod("our-ext", containers=LIMITED)
    context = await case.context(created_pod, extendedResourceClaimAllocation=extended_decision)
    assert await (await new_plugin(case.client)).pre_bind(context) == Status.ok()
    status = (await case.context(created_pod)).pod["status"]["extendedResourceClaimStatus"]  # type: ignore[index]
    assert status["requestMappings"] == their_status["requestMappings"]
    ours = await case.claim(status["resourceClaimName"])
    assert ours["metadata"]["generateName"] == theirs["metadata"]["generateName"].replace("their", "our")
    assert comparable(ours) == comparable(theirs)


def claim_refs(name: str) -> list[dict[str, str]]:
    return [{"name": "dev", "resourceClaimName": name}]


# --- devices of the DRA extensions ---

SPECIAL = "special.example.com"
COUNTERS = [{"counterSet": "gpu", "counters": {"slices": {"value": "1"}}}]
DEVICES: dict[str, list[dict[str, Any]]] = {
    # KEP-5007: prepared before the bind.
    "attached": [{"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}] * 2,
    # KEP-5075: one device for several claims, each with a part of its capacity.
    "shared": [{"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}],
    # KEP-4815: partitions of one device.
    "partition": [{"consumesCounters": COUNTERS}] * 2,
    # KEP-5055: tainted from the start, and tolerated.
    "tainted": [{"taints": [{"key": "old", "effect": "NoSchedule"}]}] * 2,
}


def publish_special(cluster: Cluster) -> None:
    """Publish a pool with devices of every kind, and a class for each kind."""
    devices = [
        {"name": f"{kind}-{index}", "attributes": {"kind": {"string": kind}}, **fields}
        for kind, entries in DEVICES.items()
        for index, fields in enumerate(entries)
    ]
    pool = {"name": SPECIAL, "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "gpu", "counters": {"slices": {"value": "4"}}}]
    for name, content in (("counters", {"sharedCounters": counters}), ("devices", {"devices": devices})):
        spec = {"driver": SPECIAL, "nodeName": NODE, "pool": pool, **content}
        cluster.api.post(f"{API}/resourceslices", {"metadata": {"name": f"{SPECIAL}-{name}"}, "spec": spec})
    for kind in DEVICES:
        expression = f'device.driver == "{SPECIAL}" && device.attributes["{SPECIAL}"].kind == "{kind}"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        cluster.api.post(f"{API}/deviceclasses", {"metadata": {"name": kind}, "spec": spec})


def claim_of(kind: str, name: str) -> dict[str, Any]:
    """A claim for one device of that kind."""
    exactly: dict[str, Any] = {"deviceClassName": kind}
    if kind == "shared":
        exactly["capacity"] = {"requests": {"memory": "10Gi"}}
    if kind == "tainted":
        exactly["tolerations"] = [{"key": "old", "operator": "Exists"}]
    body = claim(name)
    body["spec"] = {"devices": {"requests": [{"name": "dev", "exactly": exactly}]}}
    return body


def report_ready(live: LiveCluster, name: str) -> None:
    """Let the driver report that the claim's device is ready."""
    (result,) = get_claim(live, name)["status"]["allocation"]["devices"]["results"]
    condition = {"type": "ready", "status": "True", "reason": "Test", "message": ""}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    device = {**{field: result[field] for field in ("driver", "pool", "device")}, "conditions": [condition]}
    path = f"{API}/namespaces/{live.namespace}/resourceclaims/{name}/status"
    live.cluster.api.patch(path, {"status": {"devices": [device]}})


@pytest.fixture(scope="module")
def special(live: LiveCluster) -> LiveCluster:
    """The cluster with devices of every kind; skipped where the API server drops their fields."""
    publish_special(live.cluster)
    resource_slice = live.cluster.api.get(f"{API}/resourceslices/{SPECIAL}-devices")
    for device in resource_slice["spec"]["devices"]:
        missing = DEVICES[device["name"].partition("-")[0]][0].keys() - device.keys()
        if missing:
            pytest.skip(f"this Kubernetes stores no {', '.join(missing)} of a device by default")
    return live


@pytest.mark.parametrize("kind", DEVICES)
async def test_a_device_of_an_extension_is_allocated_as_kube_scheduler_does(
    special: LiveCluster, case: Case, kind: str
) -> None:
    theirs_name, ours_name = f"theirs-{kind}", f"ours-{kind}"
    special.create(claim_of(kind, theirs_name), claim_of(kind, ours_name))
    special.create_pod(theirs_name, schedulerName="default-scheduler", resourceClaims=claim_refs(theirs_name))
    if kind == "attached":
        special.until("it is allocated", lambda: get_claim(special, theirs_name).get("status") or None)
        report_ready(special, theirs_name)
    bound(special, theirs_name)
    theirs = get_claim(special, theirs_name)
    decision = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    created_pod = await case.pod(ours_name, resourceClaims=claim_refs(ours_name))
    entry = {"name": "dev", "allocation": decision}
    plugin = await new_plugin(case.client)
    answer = await plugin.pre_bind(await case.context(created_pod, resourceClaimAllocations=[entry]))
    if kind == "attached":
        assert isinstance(answer, Waiting)
        report_ready(special, ours_name)
        answer = await plugin.pre_bind(await case.context(created_pod, resourceClaimAllocations=[entry]))
    assert answer == Status.ok()
    (result,) = decision["devices"]["results"]
    assert result["device"].startswith(kind)
    ours = get_claim(special, ours_name)
    for stored_claim in (ours, theirs):
        for device in stored_claim["status"].get("devices") or ():
            assert device.pop("device")
    assert comparable(ours) == comparable(theirs)
