"""Which explanation follows from which objects. The causes on a real cluster: tests/pair/test_explain_live.py."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey, format_micro_time, format_time
from bowline_cli.diagnosis import Explanation, Facts, awaited_keys, explain, is_held
from bowline_cli.explain import as_text, duration, scheduler_names

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = ObjectKey("team", "train")


def pod(**changes: Any) -> dict[str, Any]:
    spec = {"schedulerName": "bowline", **changes.pop("spec", {})}
    metadata = {"name": "train", "namespace": "team", "creationTimestamp": ago(60), **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": spec, "status": changes}


def request(reason: str = "", phase: str = "Pending", **changes: Any) -> dict[str, Any]:
    metadata = {"name": "train", "namespace": "team", "creationTimestamp": ago(50), **changes.pop("metadata", {})}
    status = {"reason": reason, "phase": phase, **changes}
    return {"metadata": metadata, "spec": {"selectedNode": "gpu-1"}, "status": status}


def lease(selector: str = "", holder: str = "a", age_s: float = 1) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "bowline-reconciler",
            "namespace": "bowline-system",
            "annotations": {names.SHARD_SELECTOR: selector},
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": format_micro_time(NOW - timedelta(seconds=age_s)),
        },
    }


def ago(seconds: float) -> str:
    return format_time(NOW - timedelta(seconds=seconds))


def event(reason: str, message: str, kind: str = "Pod", name: str = "train", source: str = "x") -> dict[str, Any]:
    involved = {"kind": kind, "name": name}
    return {"reason": reason, "message": message, "involvedObject": involved, "reportingComponent": source}


def explained(**facts: Any) -> Explanation:
    explanation = explain(Facts(KEY, NOW, **{"leases": [lease()], "pod": pod(), **facts}))
    assert explanation is not None
    return explanation


def condition(kind: str, status: str, message: str = "", since: float = 40) -> list[dict[str, Any]]:
    return [{"type": kind, "status": status, "message": message, "lastTransitionTime": ago(since)}]


TABLE = [
    pytest.param(
        {"pod": pod(conditions=condition("PodScheduled", "False", "0/3 nodes fit"))},
        "scheduler bowline has found no node: 0/3 nodes fit",
        "bowline decides again",
        40,
        id="the scheduler finds no node",
    ),
    pytest.param(
        {"request": request("Waiting: example: data is absent (waiting for ConfigMap team/x)")},
        "example: data is absent (waiting for ConfigMap team/x)",
        "the object changes; there is no deadline",
        50,
        id="a wait without a deadline",
    ),
    pytest.param(
        {"request": request("RollbackFailed: busy", conditions=condition("RolledBack", "False", "busy"))},
        "busy",
        "",
        40,
        id="an incomplete rollback",
    ),
    pytest.param(
        {"request": request("Released: uninstalled")}, "uninstalled", "", 50, id="a request of an uninstalled release"
    ),
    pytest.param(
        {"request": request("Created: no reconciler has reported", phase="")},
        "the reconciler has not reported on the BindRequest yet",
        "",
        50,
        id="a request that was created now",
    ),
    pytest.param(
        {"request": request("", "Succeeded")},
        "its BindRequest has Succeeded for node gpu-1, of an earlier pod of that name",
        "",
        None,
        id="the request of an earlier pod",
    ),
    pytest.param(
        {"request": request("Waiting: x"), "leases": [lease(holder="")]},
        "no reconciler leads: no Lease of a reconciler is held (bowline-system/bowline-reconciler)",
        "a reconciler leads",
        50,
        id="a wait that no reconciler continues",
    ),
    pytest.param(
        {"request": request("", ""), "leases": []},
        "no reconciler leads: no Lease of a reconciler is held (none exists)",
        "a reconciler leads",
        50,
        id="no Lease",
    ),
    pytest.param(
        {"request": request("", "", metadata={"labels": {"team": "b"}}), "leases": [lease("team=a")]},
        "no shard selects its BindRequest: its labels are team=b; shards: bowline-system/bowline-reconciler (team=a)",
        "its labels or a shard's selector change",
        50,
        id="no shard",
    ),
    pytest.param(
        {"pod": None, "request": request("Waiting: x")},
        "the pod does not exist; its BindRequest remains",
        "",
        50,
        id="a request without its pod",
    ),
    pytest.param(
        {
            "request": request(
                metadata={"deletionTimestamp": ago(30), "finalizers": [names.FINALIZER]},
                conditions=condition("RolledBack", "False", "busy"),
            )
        },
        f"its BindRequest is being deleted; finalizer {names.FINALIZER} keeps it",
        "the rollback is complete",
        30,
        id="a deleted request",
    ),
    pytest.param(
        {"request": request(metadata={"deletionTimestamp": ago(30), "finalizers": ["other/x"]})},
        "its BindRequest is being deleted; finalizers of others: other/x",
        "their owners remove them",
        30,
        id="a deleted request with another finalizer",
    ),
    pytest.param(
        {
            "pod": pod(
                spec={"nodeName": "gpu-1"},
                phase="Pending",
                containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
            )
        },
        "its kubelet has not started it yet: Pending, on node gpu-1, container main ImagePullBackOff",
        "the kubelet starts it",
        60,
        id="a bound pod that does not start",
    ),
    pytest.param(
        {
            "pod": None,
            "events": [event("FailedCreate", 'admission webhook "x" denied the request: no', "Job", "train")],
        },
        "the pod is not created; Job train: ",
        "the pod template is corrected",
        None,
        id="a denied template",
    ),
    pytest.param(
        {"pod": None, "events": [event("FailedCreate", "exceeded quota: gpus", "ReplicaSet", "train-6fd")]},
        "the pod is not created; ReplicaSet train-6fd: exceeded quota: gpus",
        "the cause is removed; the controller retries",
        None,
        id="a quota",
    ),
]


@pytest.mark.parametrize(("facts", "what", "until", "since_s"), TABLE)
def test_what_is_explained(facts: dict[str, Any], what: str, until: str, since_s: float | None) -> None:
    explanation = explained(**facts)
    assert what in explanation.cause
    assert until in explanation.until
    assert explanation.since == (None if since_s is None else NOW - timedelta(seconds=since_s))


def test_nothing_is_explained_without_a_pod_and_a_failed_creation() -> None:
    assert explain(Facts(KEY, NOW, events=[event("FailedCreate", "x", "ReplicaSet", "other-6fd")])) is None


def test_leases_that_may_not_be_read_prove_nothing() -> None:
    facts = {"request": request("Waiting: x"), "leases": (), "unreadable": ("leases: 403 Forbidden",)}
    assert explained(**facts).cause == "x"


def test_a_shard_of_another_version_may_select_the_request() -> None:
    assert "no shard" not in explained(request=request("Waiting: x"), leases=[lease("{}")]).cause


@pytest.mark.parametrize(
    ("changes", "held"), [({}, True), ({"holder": ""}, False), ({"age_s": 29}, True), ({"age_s": 31}, False)]
)
def test_a_lease_is_held_for_twice_its_duration(changes: dict[str, Any], held: bool) -> None:
    assert is_held(lease(**changes), NOW) is held


def test_kai_schedulers_queue_is_named() -> None:
    queue = "queue: label kai.scheduler/queue of the pod's owner, else that of the pod (none), else default-queue"
    assert explained(pod=pod(spec={"schedulerName": "kai-scheduler"})).details == (queue,)


def test_the_awaited_pods_are_named_by_the_status() -> None:
    reason = "Waiting: gpu_sharing: no device yet (waiting for Pod a/b, Pod a/c); fails with WaitTimeout at x"
    assert awaited_keys(request(reason)) == [ObjectKey("a", "b"), ObjectKey("a", "c")]


def test_the_text_names_time_commands_and_what_was_not_read() -> None:
    reason = "Waiting: p: c (waiting for ConfigMap team/x); fails with WaitTimeout at 2026-01-01T12:10:00Z"
    facts = Facts(
        KEY,
        NOW,
        pod(),
        request(reason, conditions=condition("Prepared", "False", since=252)),
        leases=[lease()],
        unreadable=("deployments: 403 Forbidden: \x1b[2J",),
    )
    explanation = explain(facts)
    assert explanation is not None
    assert as_text(facts, explanation).splitlines() == [
        "Pod team/train: p: c (waiting for ConfigMap team/x)",
        "  since  2026-01-01T11:55:48Z (4m12s)",
        "  until  fails with WaitTimeout at 2026-01-01T12:10:00Z",
        "  next   kubectl -n team describe configmap x",
        "  not read: deployments: 403 Forbidden: \\x1b[2J",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (0, "0s"), (59, "59s"), (252, "4m12s"), (3600, "1h0m"), (90061, "1d1h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


def test_scheduler_names_are_those_of_all_readable_configurations() -> None:
    head = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"
    texts = [head + "schedulerNames: [a, b]", head + "schedulerNames: [b, c]", head + "newField: 1", None]
    configurations = [{"data": {"config.yaml": text} if text else None} for text in texts]
    assert scheduler_names(configurations) == ("a", "b", "c")
