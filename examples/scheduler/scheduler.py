"""A scheduler for pods of `example-scheduler`: fit, spread, a BindRequest each. All state is in the API."""

import json
import os
import sys
import time
import uuid
from collections import Counter, defaultdict
from datetime import UTC, datetime

from kubernetes import client, config
from kubernetes.utils import parse_quantity
from urllib3.exceptions import HTTPError

NAME, GPU, GROUP, UNKNOWN = "example-scheduler", "nvidia.com/gpu", "runai-gpu-group", float("inf")
API = {"group": "scheduling.run.ai", "version": "v1alpha2", "plural": "bindrequests"}
AVOID = "scheduler.example.com/avoid"  # on a pod, JSON: nodes that have failed, and until which time
AVOID_S = float(os.environ.get("AVOID_S", "60"))  # also the pause after a failure without a suggestion


def needs(pod):  # of all containers together, init containers too: simple, and never too little
    need = Counter(pods=1)
    for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
        need.update({key: parse_quantity(text) for key, text in container["resources"].get("requests", {}).items()})
    return need


def share(pod, node):  # part of each device, number of devices; (0, 0) without a share; above 1: no device is enough
    notes, label = pod["metadata"].get("annotations", {}), node["metadata"].get("labels", {}).get(GPU + ".memory", "")
    part, memory = float(notes.get("gpu-fraction", 0)), int(notes.get("gpu-memory", 0))
    part = part or (memory and (memory / int(label) if label.lstrip("0").isdecimal() else UNKNOWN))
    number = int(notes.get("gpu-fraction-num-devices", 1)) if part else 0
    if not (part >= 0 and 0 <= number < 1e3):  # not a number included
        raise ValueError(f"a share of {part} of {number} devices is none")
    return part, number


def allows(pod, node):  # taints by key and effect, nodeSelector, required nodeAffinity with the operator In
    spec, labels = pod["spec"], node["metadata"].get("labels", {}) | {"metadata.name": node["metadata"]["name"]}
    kinds = {(toleration.get("key"), toleration.get("effect")) for toleration in spec.get("tolerations", [])}
    taints = {(t["key"], t["effect"]) for t in node["spec"].get("taints", []) if t["effect"] != "PreferNoSchedule"}
    taints |= {("node.kubernetes.io/unschedulable", "NoSchedule")} if node["spec"].get("unschedulable") else set()
    tolerates = all({(k, e), (k, None), (None, e), (None, None)} & kinds for k, e in taints)
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
    rules = [term.get("matchExpressions", []) + term.get("matchFields", []) for term in terms]
    matches = any(all(r["operator"] == "In" and labels.get(r["key"]) in r["values"] for r in rule) for rule in rules)
    return matches and tolerates and spec.get("nodeSelector", {}).items() <= labels.items()


def take(pod, node, groups, free, used):  # count a pod; the GPU of a reservation pod is counted as its group's
    free.subtract(dict(needs(pod)) | ({GPU: sum(group not in used for group in groups)} if groups else {}))
    used.update(dict.fromkeys(groups, share(pod, node)[0]))


def place(pod, nodes, free, used):  # the fitting node with most free GPUs, then CPU, its groups; else None, why not
    avoided, causes = json.loads(pod["metadata"].get("annotations", {}).get(AVOID, "{}")), Counter()
    for name in sorted(nodes, key=lambda name: (free[name][GPU], free[name]["cpu"]), reverse=True):
        part, number = share(pod, nodes[name])
        groups = [group for group, parts in used[name].items() if part and parts + part <= 1][:number]
        need = needs(pod) + Counter({GPU: number - len(groups)})
        short = next((key for key, amount in need.items() if amount > free[name][key]), None)
        if part > 1:
            causes["with unknown GPU memory" if part == UNKNOWN else "with too small GPUs"] += 1
        elif not allows(pod, nodes[name]):
            causes["excluded by taints, nodeSelector or affinity"] += 1
        elif avoided.get(name, 0) >= time.time():
            causes["where a bind has just failed"] += 1
        elif short:
            causes[f"with too few {short} (of {need[short]} at most {max(0, free[name][short])} free)"] += 1
        else:
            return name, groups + [str(uuid.uuid4()) for _ in range(number - len(groups))]
    return None, [f"{number} {cause}" for cause, number in causes.items()]


def has_paused(request):  # after a failure that no other decision helps: its cause may have gone
    status, meta = request.get("status", {}), request["metadata"]
    end = datetime.fromisoformat(status.get("completionTime") or meta["creationTimestamp"]).timestamp()
    return status.get("phase") == "Failed" and "suggestion" not in status and end + AVOID_S < time.time()


def react(core, custom, pod, request):  # to a Failed request: docs/reference.md; each step may be repeated
    meta, suggestion = pod["metadata"], request.get("status", {}).get("suggestion")
    if suggestion == "DeletePod" and meta.get("ownerReferences"):  # its controller creates another one
        core.delete_namespaced_pod(meta["name"], meta["namespace"], body={"preconditions": {"uid": meta["uid"]}})
    if suggestion == "RescheduleElsewhere":  # on the pod first: a restart must not forget the node
        avoided = json.loads(meta.get("annotations", {}).get(AVOID, "{}"))
        avoided[request["spec"]["selectedNode"]] = time.time() + AVOID_S
        patch = {"metadata": {"uid": meta["uid"], "annotations": {AVOID: json.dumps(avoided)}}}
        core.patch_namespaced_pod(meta["name"], meta["namespace"], patch)
    if suggestion in ("RescheduleElsewhere", "RetrySameNode") or has_paused(request):
        target = API | {"namespace": meta["namespace"], "name": request["metadata"]["name"]}
        custom.delete_namespaced_custom_object(**target, body={"preconditions": {"uid": request["metadata"]["uid"]}})


def refuse(core, pod, why):  # for people as an event, as kube-scheduler does, for programs as a condition
    meta, condition = pod["metadata"], {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    if any(stored.get("message") == why for stored in pod["status"].get("conditions", [])):
        return
    event = {"metadata": {"generateName": f"{meta['name']}."}, "reason": "FailedScheduling", "message": why[:1024]}
    event |= {"type": "Warning", "source": {"component": NAME}, "lastTimestamp": f"{datetime.now(UTC):%FT%TZ}"}
    event |= {"involvedObject": {"kind": "Pod"} | {key: meta[key] for key in ("namespace", "name", "uid")}}
    patch = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [condition | {"message": why}]}}
    core.patch_namespaced_pod_status(meta["name"], meta["namespace"], patch)
    core.create_namespaced_event(meta["namespace"], event)


def decide(core, custom, pod, nodes, free, used):
    if "resourceClaims" in pod["spec"]:
        return refuse(core, pod, "this scheduler allocates no resourceClaims; use one that does")
    meta, node, groups = pod["metadata"], *place(pod, nodes, free, used)
    if node is None:
        return refuse(core, pod, f"none of {len(nodes)} nodes fits: {', '.join(groups)}")
    received = {"count": len(groups) or int(needs(pod)[GPU]), "portion": f"{share(pod, nodes[node])[0] or 1:.2f}"}
    spec = {"podName": meta["name"], "podUID": meta["uid"], "selectedNode": node, "selectedGPUGroups": groups}
    spec |= {"receivedResourceType": "Fraction" if groups else "Regular", "receivedGPU": received}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    body = {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "spec": spec}
    body |= {"metadata": {"name": meta["name"], "ownerReferences": [owner]}}
    custom.create_namespaced_custom_object(**API, namespace=meta["namespace"], body=body)
    return take(pod, nodes[node], groups, free[node], used[node])


def report(core, pod, error):  # what this program does not understand of a pod
    try:
        refuse(core, pod, f"an annotation or a field cannot be read: {error}")
    except (client.ApiException, HTTPError) as failure:
        print(pod["metadata"]["name"], error, failure, flush=True)


def read(call, **selection):  # API servers store bytes that are no UTF-8
    return json.loads(call(_preload_content=False, **selection).data.decode(errors="replace"))


def run(core, custom):  # a pass and a pause. Requests are listed first: a pod bound meanwhile is counted on its node
    requests = {r["spec"].get("podUID"): r for r in read(custom.list_cluster_custom_object, **API)["items"]}
    pods, version = (page := read(core.list_pod_for_all_namespaces))["items"], page["metadata"]["resourceVersion"]
    nodes = {n["metadata"]["name"]: n for n in read(core.list_node)["items"]}
    free, used, pending = defaultdict(Counter), defaultdict(Counter), []
    for name, node in nodes.items():
        allocatable = node.get("status", {}).get("allocatable", {})
        free[name].update({key: parse_quantity(text) for key, text in allocatable.items()})
    for pod in pods:
        meta, request = pod["metadata"], requests.get(pod["metadata"]["uid"], {})
        decision = {} if request.get("status", {}).get("phase") == "Failed" else request.get("spec", {})
        node = pod["spec"].get("nodeName") or decision.get("selectedNode")
        if node in nodes and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            labelled = {value for key, value in meta.get("labels", {}).items() if key.startswith(GROUP)}
            try:
                take(pod, nodes[node], labelled or decision.get("selectedGPUGroups", []), free[node], used[node])
            except Exception as error:  # noqa: BLE001 - whatever its tenant has stored: a share of it is not counted
                print(meta["namespace"], meta["name"], "is not counted:", repr(error), flush=True)
        is_waiting = not node and not pod["spec"].get("schedulingGates") and "deletionTimestamp" not in meta
        if is_waiting and pod["spec"]["schedulerName"] == NAME:
            pending.append((pod, request))
    for pod, request in pending:
        try:
            _ = react(core, custom, pod, request) if request else decide(core, custom, pod, nodes, free, used)
        except client.ApiException as error:  # another writer was first, or a policy denies it: the next pass
            print(pod["metadata"]["name"], error.status, error.body, flush=True)
        except Exception as error:  # noqa: BLE001 - whatever a tenant has stored prevents its own pod only
            report(core, pod, error)
    time.sleep(1)
    if not pending:  # until one appears: a read of the first event, or of the end
        fields = f"spec.nodeName=,spec.schedulerName={NAME}"
        options = {"watch": True, "timeout_seconds": 60, "_request_timeout": 70, "_preload_content": False}
        with core.list_pod_for_all_namespaces(field_selector=fields, resource_version=version, **options) as events:
            next(events.stream(), None)


sys.setrecursionlimit(20_000)  # API servers store 10,000 levels of JSON
if __name__ == "__main__":
    config.load_config()
    while True:
        try:
            run(client.CoreV1Api(), client.CustomObjectsApi())
        except (client.ApiException, HTTPError) as error:
            print("no pass:", error, flush=True)
            time.sleep(1)
