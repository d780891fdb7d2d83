"""From a BindRequest to a bound pod, or to the true reason of its failure, as the API server stores it."""

from typing import Any

from bowline.api import names
from bowline.testing.builders import bind_request
from tests.audit import PLAIN_BIND, writes_about
from tests.live import FLAKY, Live


def conditions(obj: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in (obj.get("status") or {}).get("conditions") or ()}


def test_a_request_becomes_a_bound_pod(pair: Live) -> None:
    uid = pair.create_pod()
    pair.request_bind()
    request = pair.phase("pod", "Succeeded")
    bound = pair.pod()
    assert bound["spec"]["nodeName"] == "gpu-node-0"
    assert bound["metadata"]["uid"] == uid
    assert bound["metadata"]["annotations"][names.RECEIVED_RESOURCE_TYPE] == "Regular"
    assert request["status"]["nodeName"] == "gpu-node-0"
    assert conditions(request) == {"Prepared": "True", "Bound": "True"}
    assert "reason" not in request["status"]
    assert "failedAttempts" not in request["status"]
    assert not request["metadata"].get("finalizers")
    pair.event("pod", "Bound")
    # kwok acts as the kubelet: the pod starts there.
    pair.until("the pod runs", lambda: pair.pod()["status"]["phase"] == "Running" or None)


def test_a_bind_costs_two_writes_and_one_event(pair: Live) -> None:
    pair.create_pod("cheap")
    pair.request_bind("cheap")
    pair.phase("cheap", "Succeeded")
    pair.event("cheap", "Bound")
    assert writes_about(pair, "bowline-reconciler", PLAIN_BIND) == PLAIN_BIND


def test_requests_of_the_unmodified_scheduler_are_executed(pair: Live) -> None:
    pair.create_pod("whole", containers=[gpu_container(2)])
    pair.request_bind("whole", receivedGPU={"count": 2, "portion": "1.00"})
    pair.phase("whole", "Succeeded")
    pair.create_pod("odd")
    pair.request_bind("odd", receivedResourceType="", receivedGPU={"portion": "0.00"})
    pair.phase("odd", "Succeeded")
    assert pair.pod("odd")["metadata"]["annotations"][names.RECEIVED_RESOURCE_TYPE] == "Regular"


def gpu_container(count: int) -> dict[str, Any]:
    return {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"limits": {names.RESOURCE_GPU: str(count)}},
    }


def test_a_request_for_a_missing_node_fails_with_reason_and_event(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(node="no-such-node", backoffLimit=3)
    status = pair.phase("pod", "Failed")["status"]
    assert status["failure"]["reason"] == "NodeGone"
    assert status["suggestion"] == "RescheduleElsewhere"
    # Raised to the limit: schedulers in the field read fewer as unfinished.
    assert status["failedAttempts"] == 3
    pair.event("pod", "BindingFailed")
    assert "nodeName" not in pair.pod()["spec"]
    # Written after the status, in the background.
    bound = pair.until("the pod's condition", lambda: conditions(pair.pod()).get(names.CONDITION_POD_BOUND))
    assert bound == "False"


def test_nothing_is_written_about_a_pod_that_does_not_exist(pair: Live) -> None:
    pair.create(bind_request("orphan", uid="7e5f9a3c-0000-4000-8000-000000000000"))
    # Its owner does not exist: the garbage collector may delete the request before it is Failed.

    def all_failed() -> bool:
        requests = pair.cluster.api.get(pair.request_path("").rstrip("/"))["items"]
        return all((request.get("status") or {}).get("phase") == "Failed" for request in requests)

    pair.until("the request is deleted or Failed", all_failed)
    about_pods = [
        e
        for e in pair.cluster.api.get(f"/apis/events.k8s.io/v1/namespaces/{pair.namespace}/events")["items"]
        if e["regarding"]["kind"] == "Pod"
    ]
    assert about_pods == []


def test_a_request_without_uid_is_pinned_and_bound(pair: Live) -> None:
    uid = pair.create_pod()
    pair.create(bind_request(node="gpu-node-1"))
    request = pair.phase("pod", "Succeeded")
    assert [o["uid"] for o in request["metadata"]["ownerReferences"]] == [uid]
    assert pair.pod()["spec"]["nodeName"] == "gpu-node-1"


def test_a_request_may_be_created_before_its_pod(pair: Live) -> None:
    pair.create(bind_request("late"))
    pair.create_pod("late")
    # node-0 of the builder does not exist here; the pod must be awaited and then rejected.
    assert pair.phase("late", "Failed")["status"]["reason"].startswith("NodeGone")


def test_a_pod_on_another_node_is_no_success(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(node="gpu-node-0")
    pair.phase("pod", "Succeeded")
    uid = pair.pod()["metadata"]["uid"]
    second = bind_request("pod", "gpu-node-1", uid=uid)
    second["metadata"]["name"] = "second"
    pair.create(second)
    status = pair.phase("second", "Failed")["status"]
    assert status["reason"].startswith("BoundElsewhere")
    assert status["nodeName"] == "gpu-node-0"


def test_a_predecessors_request_never_binds_the_successor(pair: Live) -> None:
    first = pair.create_pod()
    pair.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
    second = pair.create_pod()
    assert first != second
    stale = bind_request("pod", "gpu-node-0", uid=first)
    # By UID only: with an owner reference to a deleted pod the garbage collector would be faster than the test.
    stale["metadata"].pop("ownerReferences")
    stale["spec"]["podUID"] = first
    pair.create(stale)
    assert pair.phase("pod", "Failed")["status"]["reason"].startswith("PodGone")
    assert "nodeName" not in pair.pod()["spec"]


SHARE: dict[str, Any] = {
    "receivedResourceType": "Fraction",
    "receivedGPU": {"count": 1, "portion": "0.50"},
    "selectedGPUGroups": ["group"],
}


def test_a_pod_without_a_share_gets_none(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(**SHARE)
    assert pair.phase("pod", "Failed")["status"]["failure"]["reason"] == "Rejected"
    assert "nodeName" not in pair.pod()["spec"]


def test_another_schedulers_pod_is_not_bound(pair: Live) -> None:
    pair.create_pod(schedulerName="other-scheduler")
    pair.request_bind()
    assert pair.phase("pod", "Failed")["status"]["failure"]["reason"] == "NotOurs"


def test_a_gated_pod_is_awaited(pair: Live) -> None:
    uid = pair.create_pod(schedulingGates=[{"name": "example.com/hold"}])
    # The reply shows the request as it is stored first: the wait is reported after seconds.
    body = bind_request("pod", "gpu-node-0", pair.namespace, uid)
    unread = pair.cluster.api.post(pair.request_path("").rstrip("/"), body)["status"]
    assert unread["reason"].startswith("Created: nothing is reported yet")
    pair.event("pod", "BindingWaiting")
    waiting = pair.request()["status"]
    assert waiting["phase"] == "Pending"
    assert waiting["reason"].startswith("Waiting")
    assert waiting["wait"]["deadline"]
    assert not waiting.keys() & {"failedAttempts", "startTime"}
    assert "Waiting: " in pair.kubectl("describe", "br", "pod").stdout
    pair.kubectl("patch", "pod", "pod", "--type=json", '-p=[{"op":"remove","path":"/spec/schedulingGates"}]')
    pair.phase("pod", "Succeeded")


def test_the_same_wait_of_another_request_repeats_the_event_on_the_pod(pair: Live) -> None:
    pair.create_pod(schedulingGates=[{"name": "example.com/hold"}])
    for count in (1, 2):
        pair.request_bind()
        until_reported(pair, count)
        pair.cluster.api.delete(pair.request_path())
        pair.until("the request is deleted", lambda: pair.not_found(pair.request_path()))


def until_reported(pair: Live, count: int) -> None:
    """Wait until the event of the pod's wait has occurred so often, as one object."""
    path = f"/apis/events.k8s.io/v1/namespaces/{pair.namespace}/events"

    def counts() -> list[int]:
        events = [event for event in pair.cluster.api.get(path)["items"] if event["regarding"]["kind"] == "Pod"]
        waits = [event for event in events if event["reason"] == "BindingWaiting"]
        return [(event.get("series") or {}).get("count", 1) for event in waits]

    pair.until(f"report {count}", lambda: counts() == [count])


def test_failures_are_counted_and_success_is_written_last(pair: Live) -> None:
    pair.create_pod(annotations={FLAKY: "2"})
    pair.request_bind()
    request = pair.phase("pod", "Succeeded")["status"]
    assert request["failedAttempts"] == 2
    # Events and the condition are written in the background, by several writers; the failures set it to False.
    events = pair.until("three events", lambda: pairs if len(pairs := pair.events()) >= 3 else None)
    assert [reason for reason, _ in events] == ["BindingRetry", "BindingRetry", "Bound"]
    pair.until("the pod's condition", lambda: conditions(pair.pod()).get(names.CONDITION_POD_BOUND) == "True")


def test_a_request_fails_terminally_at_the_backoff_limit(pair: Live) -> None:
    pair.create_pod(annotations={FLAKY: "99"})
    pair.request_bind(backoffLimit=1)
    request = pair.phase("pod", "Failed")
    assert request["status"]["reason"].startswith("BackoffLimitExceeded: ")
    assert request["status"]["failedAttempts"] == 2
    # A later event of the pod does not retry a Failed request.
    pair.kubectl("annotate", "pod", "pod", "touched=yes")
    pair.create_pod("other")
    pair.request_bind("other")
    pair.phase("other", "Succeeded")
    assert pair.request()["metadata"]["resourceVersion"] == request["metadata"]["resourceVersion"]


def test_two_requests_for_one_pod_take_turns(pair: Live) -> None:
    uid = pair.create_pod(annotations={FLAKY: "1"})
    for name in ("a", "b"):
        body = bind_request("pod", "gpu-node-2", uid=uid)
        body["metadata"]["name"] = name
        pair.create(body)
    assert pair.phase("a", "Succeeded")["status"]["failedAttempts"] == 1
    # The second request finds the pod on its node: success without an attempt.
    assert "failedAttempts" not in pair.phase("b", "Succeeded")["status"]


def test_a_restarted_reconciler_processes_what_it_missed(pair: Live) -> None:
    old = pair.pair.reconcilers[0]
    assert old.stop()
    pair.create_pod()
    pair.request_bind()
    pair.pair.launch_reconciler().wait_ready()
    pair.phase("pod", "Succeeded")


def test_the_reconciler_has_the_least_rights(pair: Live) -> None:
    """The reconciler's ServiceAccount has the rights that it needs, and none that would make its token valuable."""

    def can(verb: str, resource: str, subresource: str = "") -> bool:
        account = f"--as=system:serviceaccount:{pair.pair.options.namespace}:bowline-reconciler"
        command = ("auth", "can-i", verb, resource, f"--subresource={subresource}", account)
        return pair.kubectl(*command, check=False).stdout.strip() == "yes"

    assert can("create", "pods", "binding")
    assert can("patch", "bindrequests.scheduling.run.ai", "status")
    for verb, resource in (("get", "secrets"), ("create", "pods"), ("delete", "pods"), ("update", "nodes")):
        assert not can(verb, resource), f"{verb} {resource}"
