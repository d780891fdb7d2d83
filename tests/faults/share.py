"""A pod with half a GPU and its request, and the state in which its bind ends, in a form that can be compared."""

import json
from typing import Any

from bowline.api import names
from bowline.framework.mutable import MutablePod
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.testing.builders import bind_request, pod
from tests.live import LiveCluster
from tests.plugins.sharing import HALF, RESERVATIONS, device_of, group_of

NODE = "gpu-node-0"


def play(live: LiveCluster) -> None:
    """Create the pod, as the webhook prepares it, and its request for a group of its namespace's name."""
    body = pod("pod", live.namespace, runtimeClassName="nvidia")
    body["metadata"]["annotations"] = dict(HALF)
    prepare(MutablePod(body), live.namespace)
    uid = live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/pods", body)["metadata"]["uid"]
    decision = {
        "receivedResourceType": "Fraction",
        "receivedGPU": {"count": 1, "portion": "0.50"},
        "selectedGPUGroups": [live.namespace],
    }
    request = bind_request("pod", NODE, live.namespace, uid, podUID=uid, **decision)
    live.cluster.api.post(live.request_path().rpartition("/")[0], request)


def is_bound(live: LiveCluster) -> bool:
    """Return whether the request has succeeded and has no finalizer any more."""
    request = live.request()
    return (request.get("status") or {}).get("phase") == "Succeeded" and not request["metadata"].get("finalizers")


def reservations(live: LiveCluster) -> list[dict[str, Any]]:
    """Return the reservation pods of the run's group."""
    return [each for each in live.cluster.api.get(RESERVATIONS)["items"] if group_of(each) == live.namespace]


def share_maps(live: LiveCluster) -> list[dict[str, Any]]:
    """Return the ConfigMaps of shares in the run's namespace."""
    items = live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/configmaps")["items"]
    return [each for each in items if each["metadata"].get("ownerReferences")]


def state_of(live: LiveCluster) -> dict[str, Any]:
    """Return all that a run leaves, without times and messages; a random name is replaced by what it refers to.

    The pod condition PodBound is best effort, as events are: a crash may lose it.
    """
    stored_pod, request, own_reservations = live.pod(), live.request(), reservations(live)
    status, metadata = request.get("status") or {}, stored_pod["metadata"]
    fields = ("phase", "failedAttempts", "nodeName", "suggestion")
    state = {
        "node": stored_pod["spec"].get("nodeName"),
        "annotations": metadata.get("annotations"),
        "labels": metadata.get("labels"),
        "status": {field: status.get(field) for field in fields},
        "reason": (status.get("reason") or "").partition(":")[0],
        "conditions": {each["type"]: each["status"] for each in status.get("conditions") or ()},
        "finalizers": request["metadata"].get("finalizers"),
        "maps": {each["metadata"]["name"]: each.get("data") for each in share_maps(live)},
        "reservations": [[each["spec"]["nodeName"], device_of(each)] for each in own_reservations],
    }
    aliases = {
        live.namespace: "<run>",
        metadata["uid"]: "<pod>",
        request["metadata"]["uid"]: "<request>",
        metadata["annotations"].get(names.SHARED_GPU_CONFIGMAP, "-"): "<maps>",
        **{each["metadata"]["uid"]: "<reservation>" for each in own_reservations},
    }
    text = json.dumps(state, sort_keys=True)
    for random_name in sorted(aliases, key=len, reverse=True):
        text = text.replace(random_name, aliases[random_name])
    anonymous_state: dict[str, Any] = json.loads(text)
    return anonymous_state
