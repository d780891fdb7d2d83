"""A pod's BindRequest is withdrawn and made again for another node, while the reconciler is killed.

After it exactly the other node's preparation is in the cluster. The simulation has other orders and faults. Volumes
are not among it: Kubernetes keeps a claim on the volume that was reserved for it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.localcluster.errors import LocalApiError
from bowline.testing.builders import resource_slice
from bowline.testing.fault_proxy.faults import LoseReply
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.faults.lab import Lab, Reconciler
from tests.faults.matrix import is_leading
from tests.faults.plugin_objects import Stored, group_name, read_objects
from tests.faults.plugin_scenarios import post_share, share_body
from tests.faults.scenarios import make_pod, make_request
from tests.live import LiveCluster
from tests.plugins.claims import API, DRIVER, allocation, publish, reserved_by, template
from tests.plugins.sharing import device_of, group_of

NODES = ("gpu-node-0", "gpu-node-1")


@dataclass(frozen=True, slots=True)
class Kind:
    """What the pod needs. ``make`` creates it and returns its UID; ``decision``: a request's spec for a node.

    ``effect``: the write that prepares the pod; ``prepared``: the nodes for which something is prepared.
    """

    name: str
    make: Callable[[LiveCluster], str]
    decision: Callable[[LiveCluster, str], Mapping[str, Any]]
    effect: CallMatch
    prepared: Callable[[LiveCluster, Stored], set[str]]


def _make_share(live: LiveCluster) -> str:
    return post_share(live, share_body(live))


def _group(live: LiveCluster, node: str) -> str:
    return group_name(live, node)


def _decide_share(live: LiveCluster, node: str) -> Mapping[str, Any]:
    return {
        "receivedResourceType": "Fraction",
        "receivedGPU": {"count": 1, "portion": "0.50"},
        "selectedGPUGroups": [_group(live, node)],
    }


def _shared_nodes(live: LiveCluster, stored: Stored) -> set[str]:
    """The nodes of reservations, and those of which the label or the ConfigMaps of the pod name a device."""
    (pod,) = stored.pods
    groups = gpu_groups(pod["metadata"].get("labels") or {})
    labelled_nodes = {node for node in NODES if _group(live, node) in groups}
    devices = {device_of(each): each["spec"]["nodeName"] for each in stored.reservations}
    assert all(group_of(each) == _group(live, each["spec"]["nodeName"]) for each in stored.reservations)
    visible = {(each.get("data") or {}).get(names.VISIBLE_DEVICES) for each in stored.maps}
    shown_nodes = {devices.get(device, f"of the unknown device {device}") for device in visible if device}
    assert shown_nodes or not labelled_nodes
    return {*labelled_nodes, *devices.values(), *shown_nodes}


def _make_device(live: LiveCluster) -> str:
    publish(live.cluster)
    body = resource_slice(NODES[1], ["d0", "d1", "d2", "d3"], DRIVER)
    path = f"{API}/resourceslices/{body['metadata']['name']}?fieldManager=test&force=true"
    live.cluster.api.request("PATCH", path, body, "application/apply-patch+yaml")
    live.cluster.api.post(f"{API}/namespaces/{live.namespace}/resourceclaimtemplates", template("tpl"))
    return make_pod(live, resourceClaims=[{"name": "dev", "resourceClaimTemplateName": "tpl"}])


def _decide_device(_: LiveCluster, node: str) -> Mapping[str, Any]:
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    content = {**allocation("d0", pool=node), "nodeSelector": {"nodeSelectorTerms": [on_node]}}
    return {"resourceClaimAllocations": [{"name": "dev", "allocation": content}]}


def _allocated_nodes(_: LiveCluster, stored: Stored) -> set[str]:
    (pod,) = stored.pods
    allocations = [(claim.get("status") or {}).get("allocation") or {} for claim in stored.claims]
    pools = {result["pool"] for each in allocations for result in (each.get("devices") or {}).get("results") or ()}
    users = {uid for claim in stored.claims for uid in reserved_by(claim)}
    assert users == ({pod["metadata"]["uid"]} if pools else set())
    return pools


KINDS = (
    Kind("share", _make_share, _decide_share, CallMatch(("patch",), "pods", ""), _shared_nodes),
    Kind(
        "device", _make_device, _decide_device, CallMatch(("update",), "resourceclaims", "status"), _allocated_nodes
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_of_a_withdrawn_decision_remains_beside_the_next_one(lab: Lab, kind: Kind) -> None:
    live = lab.namespace(f"again-{kind.name}")
    with lab.reconciler("again") as reconciler:
        live.until("it leads", lambda: is_leading(reconciler))
        uid = kind.make(live)
        is_killed = threading.Event()
        _kill_at(reconciler, live, kind.effect, is_killed)
        assert _ask(live, kind, NODES[0], uid)
        live.until("it was killed", is_killed.is_set)
        live.cluster.api.delete(live.request_path())
        assert not _ask(live, kind, NODES[1], uid), "its finalizer keeps the name"
        reconciler.proxy.clear()
        reconciler.restart()
        live.until("the next request is created", lambda: _ask(live, kind, NODES[1], uid) or None)
        request = live.phase("pod", "Succeeded", "Failed")
        assert request["status"]["phase"] == "Succeeded", request["status"]
        live.until("one preparation is left", lambda: kind.prepared(live, read_objects(live)) == {NODES[1]} or None)
        pod = live.pod()
        reconciler.check()
    assert pod["spec"]["nodeName"] == NODES[1]
    assert pod["metadata"]["annotations"][names.PREPARED_FOR] == request["metadata"]["uid"]


def _kill_at(reconciler: Reconciler, live: LiveCluster, match: CallMatch, is_killed: threading.Event) -> None:
    """Kill the reconciler when its first such write was executed and the reply is due."""

    def end() -> None:
        reconciler.kill()
        is_killed.set()

    here = CallMatch(match.verbs, match.resource, match.subresource, live.namespace)
    reconciler.proxy.add(FaultRule(LoseReply(end), here, nth=1))


def _ask(live: LiveCluster, kind: Kind, node: str, uid: str) -> bool:
    """Create the pod's request; return whether there was none."""
    try:
        make_request(live, uid, node=node, **kind.decision(live, node))
    except LocalApiError as error:
        if error.status != 409:
            raise
        return False
    return True
