"""What a tenant stores costs a bounded amount of work, whatever it stores: at the API server's limits, and at ours.

Both processes run these parts between two awaits, so each must stay below 50 ms. Counted are lines of Python, not
time: an idle machine runs twenty million of them a second, and a slow one half as many.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.failed_decision import failed_decision_of
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.api.pod_volumes import pod_volumes
from bowline.api.reduction import reduced_pod, reduced_request
from bowline.api.selectors import MAX_REQUIREMENTS, Node
from bowline.api.taints import MAX_TOLERATIONS, untolerated
from bowline.framework.admission import AdmissionChain, request_errors
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.interface.status import Fatal
from bowline.framework.workloads import WorkloadEntry
from bowline.kube.stored import is_stored
from bowline.kube.unreadable import MAX_VALUES
from bowline.plugins.catalog import build_plugins
from bowline.plugins.dynamic_resources.taints import reduce_slice, untolerated_taints
from bowline.plugins.gpu_sharing.group import transform_user
from bowline.plugins.gpu_sharing.labels import label_changes, label_removals
from bowline.plugins.gpu_sharing.rules import share_of
from bowline.plugins.volume_binding.rules import MAX_CLAIMS, MAX_PAIRS, Unbound, check_count, choose
from bowline.plugins.volume_binding.volumes import StorageClass, Volume, read_claim, read_volume
from bowline.testing.builders import bind_request, pod, stored
from bowline_reconciler.decide.snapshot import pod_view
from bowline_webhook.workloads import review_workload

# 50 ms at ten million lines a second.
MAX_LINES = 500_000
NODE = Node("node-0", {"kubernetes.io/hostname": "node-0"})
GIB = {"requests": {"storage": "1Gi"}}


def lines_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many lines of Python the work runs, and its result. An iteration of an expression is a line, too."""
    count, former = 0, sys.gettrace()

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        result = work()
    finally:
        sys.settrace(former)
    return count, result


def raw_claim(operator: str) -> dict[str, Any]:
    """Return a claim with the largest selector that is evaluated."""
    values = {"values": ["x"]} if operator in ("In", "NotIn") else {}
    keys = range(MAX_REQUIREMENTS // (2 if values else 1))
    expressions = [{"key": f"k{key}", "operator": operator, **values} for key in keys]
    spec = {"storageClassName": "c", "accessModes": ["ReadWriteOnce"], "resources": GIB}
    return stored({"metadata": {"name": "c", "namespace": "ns"}, "spec": spec}, uid="c") | {
        "spec": {**spec, "selector": {"matchExpressions": expressions}}
    }


def unbound_claims(operator: str, cls: StorageClass) -> list[Unbound]:
    """Return as many such claims as are bound for one pod."""
    claim = read_claim(raw_claim(operator))
    names_of_claims = [f"c{number}" for number in range(MAX_CLAIMS)]
    return [Unbound(replace(claim, key=ObjectKey("ns", name), uid=ObjectUID(name)), cls) for name in names_of_claims]


def volumes(count: int, labels: Sequence[str]) -> list[Volume]:
    spec = {"storageClassName": "c", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    label_values = dict.fromkeys(labels, "x")
    metadata = (
        {"name": f"v{n}", "uid": f"v{n}", "resourceVersion": "1", "labels": label_values} for n in range(count)
    )
    return [read_volume({"metadata": each, "spec": spec, "status": {"phase": "Available"}}) for each in metadata]


@pytest.mark.parametrize("operator", ["NotIn", "Exists"])
@pytest.mark.parametrize("labels", [pytest.param([], id="none"), pytest.param(["k0", "k1"], id="two labels")])
def test_the_claims_of_a_pod_with_the_largest_selectors(operator: str, labels: list[str]) -> None:
    provisioned = StorageClass("c", "example.com/disks", wait_for_first_consumer=True, topologies=())
    free = volumes(MAX_PAIRS // MAX_CLAIMS, labels)
    unbound = unbound_claims(operator, provisioned)
    lines, choices = lines_of(lambda: choose(unbound, NODE, free, lambda volume, claim: False))
    assert len(choices) == MAX_CLAIMS
    assert lines <= MAX_LINES, "a comparison does not depend on the selector's size"
    lines, _ = lines_of(lambda: read_claim(raw_claim(operator)))
    assert lines <= MAX_LINES / 4


def test_more_pairs_are_not_compared() -> None:
    cls = StorageClass("c", "example.com/disks", wait_for_first_consumer=True, topologies=())
    unbound = unbound_claims("Exists", cls)
    free = volumes(MAX_PAIRS // MAX_CLAIMS + 1, ())
    lines, status = lines_of(lambda: choose(unbound, NODE, free, lambda volume, claim: False))
    assert isinstance(status, Fatal)
    assert lines <= 50


def huge_pod(field: str) -> dict[str, Any]:
    """Return a pod with as many values as are decoded, all of one field."""
    body = stored(pod("pod", "ns"))
    count = MAX_VALUES // 8
    entries = {
        "tolerations": [{"key": f"k{n}", "operator": "Exists", "effect": "NoSchedule"} for n in range(count)],
        "volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(count)],
        "containers": [{"name": f"c{n}", "image": "x"} for n in range(count)],
        "schedulingGates": [{"name": f"example.com/g{n}"} for n in range(count)],
    }
    if field in entries:
        body["spec"][field] = entries[field]
    elif field == "env":
        env = [{"name": names.VISIBLE_DEVICES, "value": "all"} for _ in range(count)]
        body["spec"]["containers"][0]["env"] = env
    elif field == "conditions":
        body["status"] = {"conditions": [{"type": f"t{n}", "status": "True"} for n in range(count)]}
    elif field == "managedFields":
        body["metadata"][field] = [{"manager": f"m{n}", "operation": "Update"} for n in range(count)]
    else:
        key = f"{names.LABEL_GPU_GROUP}/g{{}}" if field == "labels" else f"{names.NV_CONTAINER}c{{}}"
        body["metadata"][field] = {key.format(n): f"g{n}" for n in range(count)}
    body["metadata"].setdefault("annotations", {})[names.SHARED_GPU_CONFIGMAP] = "p"
    return body


FIELDS = (
    "tolerations",
    "volumes",
    "containers",
    "schedulingGates",
    "env",
    "conditions",
    "managedFields",
    "labels",
    "annotations",
)
OF_A_POD: list[Callable[[dict[str, Any]], object]] = [
    reduced_pod,
    pod_view,
    share_of,
    transform_user,
    lambda body: check_count(pod_volumes(body)),
    lambda body: label_changes(body["metadata"].get("labels") or {}, ["g"]),
    lambda body: label_removals(body["metadata"].get("labels") or {}, ["g"]),
    failed_decision_of,
]


@pytest.mark.parametrize("field", FIELDS)
def test_what_is_done_with_a_pod(field: str) -> None:
    body = huge_pod(field)
    lines, _ = lines_of(lambda: [work(body) for work in OF_A_POD])
    assert lines <= MAX_LINES


def test_the_taints_of_a_node() -> None:
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(MAX_TOLERATIONS)]
    taints = [{"key": f"t{n}", "effect": "NoSchedule"} for n in range(8)]
    lines, taint = lines_of(lambda: untolerated(taints, tolerations))
    assert taint is not None
    assert lines <= MAX_LINES


def test_a_claim_of_devices_at_the_api_servers_limits() -> None:
    """32 devices of one request with 16 tolerations, on a slice of 128 devices with 16 taints each."""
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(16)]
    taints = [{"key": f"t{n}", "effect": "NoSchedule"} for n in range(16)]
    results = [
        {"driver": "d", "pool": "p", "device": f"gpu-{n}", "request": "r", "tolerations": tolerations}
        for n in range(32)
    ]
    devices = [{"name": f"gpu-{n}", "taints": taints} for n in range(128)]
    resource_slice = {
        "metadata": {"name": "s", "uid": "u", "resourceVersion": "1"},
        "spec": {"driver": "d", "pool": {"name": "p"}, "devices": devices},
    }
    reduced = reduce_slice(resource_slice)
    assert reduced is not None
    requests = [{"name": "r", "exactly": {"tolerations": tolerations}}]
    lines, tainted = lines_of(lambda: untolerated_taints({"devices": {"results": results}}, requests, [reduced], ()))
    assert len(tainted) == 32 * 16
    assert lines <= MAX_LINES


def test_a_write_of_many_finalizers_is_compared_with_its_reply() -> None:
    finalizers = [f"example.com/f{number}" for number in range(20_000)]
    for stored_finalizers in (finalizers, finalizers[:10_000] + finalizers[10_001:]):
        written, reply = ({"metadata": {"finalizers": entries}} for entries in (finalizers, stored_finalizers))
        lines, is_equal = lines_of(partial(is_stored, written, reply))
        assert is_equal is (stored_finalizers is finalizers)
        assert lines <= MAX_LINES


def workload_of(kind: str, metadata: dict[str, Any], pods: int = 1, **spec: Any) -> dict[str, Any]:
    """Return an object with pods of our scheduler."""
    pod_spec = {"schedulerName": "example-scheduler", "containers": [{"name": "main", "env": [{"name": "A"}] * 5000}]}
    if kind == "InferenceService":
        canary = {"predictor": {**pod_spec, "containers": [{"name": "main"}]}}
        return {"metadata": metadata, "spec": {"predictor": pod_spec, "canary": [canary] * pods, **spec}}
    if kind == "JobSet":
        template = {"metadata": {}, "spec": {**pod_spec, "containers": [{"name": "main"}]}}
        jobs = [{"name": "a", "template": {"spec": {"template": template}}}] * pods
        return {"metadata": metadata, "spec": {"replicatedJobs": jobs, **spec}}
    return {"metadata": metadata, "spec": {"template": {"metadata": {}, "spec": pod_spec}, **spec}}


MIG = {f"nvidia.com/mig-{number}": "1" for number in range(5_000)}
MANY = {f"a{number}": "" for number in range(5_000)}


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(("Deployment", workload_of("Deployment", {"labels": MIG})), id="devices beside the pod"),
        pytest.param(
            ("InferenceService", workload_of("InferenceService", {"annotations": MANY}, 60)), id="annotations of pods"
        ),
        *(
            pytest.param(("JobSet", workload_of("JobSet", {}, 120, others=[{key: "1"}] * 5_000)), id=f"{key} beside")
            for key in (names.GPU_FRACTION, names.RESOURCE_GPU, "schedulerName")
        ),
    ],
)
def test_a_review_of_a_workload(workload: tuple[str, dict[str, Any]]) -> None:
    kind, raw = workload
    settings = Settings(workloads=(WorkloadEntry(kind="InferenceService"), WorkloadEntry(kind="JobSet")))
    chain = AdmissionChain(build_plugins(settings), settings)
    (reviewed_kind,) = (entry for entry in chain.workloads.values() if entry.kind == kind)
    lines, verdict = lines_of(lambda: review_workload(chain, reviewed_kind, raw, None, AdmissionInfo(kind=kind)))
    assert verdict.allowed
    assert lines <= MAX_LINES


@pytest.mark.parametrize("field", ["labels", "annotations", "groups", "unknown fields"])
def test_a_request_at_the_limits(field: str) -> None:
    body = stored(bind_request("r", uid="u"))
    if field == "groups":
        body["spec"]["selectedGPUGroups"] = [f"g{n}" for n in range(1024)]
    elif field == "unknown fields":
        body["spec"] |= {f"backofLimit{n}": 1 for n in range(10_000)}
    else:
        body["metadata"][field] = {f"k{n}": "v" for n in range(10_000)}
    lines, _ = lines_of(lambda: (decode_bind_request(reduced_request(body)), request_errors(body, None)))
    assert lines <= MAX_LINES
    assert decode_bind_request(body).key == ObjectKey(body["metadata"]["namespace"], "r")
