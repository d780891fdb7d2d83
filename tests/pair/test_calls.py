"""The API calls of an attempt, counted in the API server's audit log."""

from collections import Counter

from bowline.testing.builders import bind_request, pod
from tests.audit import PLAIN_BIND, Calls, count_calls
from tests.live import FLAKY, Live

RECONCILER = "bowline-reconciler"


def calls_made(live: Live, expected: Calls) -> Calls:
    """The reconciler's calls in the test's namespace; its watches are cluster-wide."""
    return count_calls(live, RECONCILER, expected)


def test_a_rejected_pod_costs_few_calls_and_then_none(pair: Live) -> None:
    pair.create_pod(annotations={FLAKY: "99"})
    pair.request_bind(backoffLimit=2)
    request = pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    failed_bind_calls: Calls = Counter(
        {
            # Each failure: the pod's condition, the request's status, an event about each of the two.
            ("patch", "pods/status"): 3,
            ("patch", "bindrequests/status"): 3,
            ("create", "events"): 6,
            # Before each further attempt: is the request still valid?
            ("get", "bindrequests"): 2,
        }
    )
    assert calls_made(pair, failed_bind_calls) == failed_bind_calls
    # Later changes of the pod cause no calls.
    for value in ("one", "two"):
        pair.kubectl("annotate", "pod", "pod", f"touched={value}", "--overwrite")
    pair.create_pod("other")
    pair.request_bind("other")
    pair.phase("other", "Succeeded")
    pair.event("other", "Bound")
    bound: Calls = Counter(PLAIN_BIND)
    assert calls_made(pair, failed_bind_calls + bound) == failed_bind_calls + bound
    assert pair.request()["metadata"]["resourceVersion"] == request["metadata"]["resourceVersion"]


def test_a_pod_that_can_never_be_bound_costs_four_writes_and_one_read(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(node="nowhere")
    pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    # Node reads have no namespace.
    lost_pod_calls: Calls = Counter(
        {("patch", "pods/status"): 1, ("patch", "bindrequests/status"): 1, ("create", "events"): 2}
    )
    assert calls_made(pair, lost_pod_calls) == lost_pod_calls


def test_many_binds_cost_no_read_of_completed_requests(pair: Live) -> None:
    """Completed requests that the watches report behind a long queue cause no calls."""
    (reconciler,) = pair.pair.reconcilers
    assert reconciler.stop()
    pods = [f"pod-{number}" for number in range(100)]
    pair.create(*(pod(name) for name in pods))
    stored_pods = pair.cluster.api.get(f"/api/v1/namespaces/{pair.namespace}/pods")["items"]
    uids = {stored_pod["metadata"]["name"]: stored_pod["metadata"]["uid"] for stored_pod in stored_pods}
    pair.create(*(bind_request(name, "gpu-node-0", uid=uids[name]) for name in pods))
    pair.pair.launch_reconciler().wait_ready()
    for name in pods:
        pair.phase(name, "Succeeded")
    calls_of_hundred: Calls = Counter(dict.fromkeys(PLAIN_BIND, 100))
    assert calls_made(pair, calls_of_hundred) == calls_of_hundred
    # The watches have delivered all of their events before the event of one more.
    pair.create_pod("last")
    pair.request_bind("last")
    pair.phase("last", "Succeeded")
    pair.event("last", "Bound")
    expectation: Calls = Counter(dict.fromkeys(PLAIN_BIND, 101))
    assert calls_made(pair, expectation) == expectation
