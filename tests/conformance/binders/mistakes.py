"""Binders with one mistake each, the one that the argument names; else right for pods without a share."""

import sys
import time
from typing import Any

from kubernetes import client, config

MISTAKE = sys.argv[1]
GROUP, VERSION, PLURAL = "scheduling.run.ai", "v1alpha2", "bindrequests"
config.load_config()  # type: ignore[no-untyped-call]
core = client.CoreV1Api()
custom: Any = client.CustomObjectsApi()
failures: dict[str, int] = {}


def report(request: Any, phase: str | None) -> None:
    metadata = request["metadata"]
    where = (GROUP, VERSION, metadata["namespace"], PLURAL, metadata["name"])
    custom.patch_namespaced_custom_object_status(*where, {"status": {"phase": phase}})


def is_final(request: Any) -> bool:
    phase = request.get("status", {}).get("phase")
    if phase == "Failed" and MISTAKE == "revives_failed" and "labels" in request["metadata"]:
        report(request, None)
        return False
    if phase == "Succeeded" and MISTAKE == "reopens_succeeded" and "labels" in request["metadata"]:
        report(request, "Pending")
        return True
    return phase in ("Failed", "Succeeded")


def bind(request: Any) -> bool:
    """Bind the pod; return whether it is bound."""
    spec, namespace = request["spec"], request["metadata"]["namespace"]
    node = "gpu-node-1" if MISTAKE == "takes_another_node" else spec["selectedNode"]
    target = client.V1ObjectReference(kind="Node", name=node)
    uid = None if MISTAKE == "names_no_uid" else request["metadata"]["ownerReferences"][0]["uid"]
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name=spec["podName"], uid=uid), target=target)
    try:
        if MISTAKE != "takes_any_node":
            core.read_node(spec["selectedNode"])
        core.create_namespaced_pod_binding(spec["podName"], namespace, binding, _preload_content=False)
    except client.ApiException as error:
        if MISTAKE == "takes_a_conflict_as_bound" and error.status == 409:
            return True
        if MISTAKE == "takes_a_conflict_as_failure":
            return False
        pod = core.read_namespaced_pod(spec["podName"], namespace)
        return bool(pod.spec and pod.spec.node_name == spec["selectedNode"])
    return True


class StillUnbound(Exception):  # noqa: N818 - no request is served before this one
    pass


def finish(request: Any) -> None:
    if MISTAKE == "deletes_requests":
        metadata = request["metadata"]
        custom.delete_namespaced_custom_object(GROUP, VERSION, metadata["namespace"], PLURAL, metadata["name"])
    elif MISTAKE != "never_reports":
        report(request, "Succeeded")


def process(request: Any) -> None:
    uid, spec = request["metadata"]["uid"], request["spec"]
    if "deletionTimestamp" in request["metadata"] and MISTAKE != "binds_deleted_requests":
        if MISTAKE == "removes_all_finalizers":
            where = (GROUP, VERSION, request["metadata"]["namespace"], PLURAL, request["metadata"]["name"])
            custom.patch_namespaced_custom_object(*where, {"metadata": {"finalizers": None}})
        return
    if MISTAKE == "exits_at_mig_instances" and spec["receivedResourceType"] == "MigInstance":
        sys.exit("MigInstance is not supported")
    if spec.get("resourceClaimAllocations") and MISTAKE != "ignores_claims":
        report(request, "Failed")
        return
    if bind(request):
        finish(request)
        return
    if MISTAKE == "serves_one_at_a_time":
        raise StillUnbound
    failures[uid] = failures.get(uid, 0) + 1
    has_ended = failures[uid] > spec.get("backoffLimit", 0)
    if MISTAKE == "fails_at_once" or (has_ended and MISTAKE != "ignores_the_limit"):
        report(request, "Failed")


while True:
    requests = custom.list_cluster_custom_object(GROUP, VERSION, PLURAL)["items"]
    requests.sort(key=lambda item: item["metadata"]["creationTimestamp"], reverse=MISTAKE == "newest_first")
    for item in requests:
        try:
            if not is_final(item):
                process(item)
        except StillUnbound:
            break
        except client.ApiException as error:
            sys.stderr.write(f"{error.status}: {error.body}\n")
    time.sleep(0.2)
