"""The API calls of an attempt, counted in the API server's audit log."""

from collections import Counter

from shared.testing.builders import bind_request, pod
from tests.audit import PLAIN_BIND, Calls, count_calls
from tests.live import Live

RECONCILER = "bowline-reconciler"


def spent(live: Live, expected: Calls) -> Calls:
    """The reconciler's calls in the test's namespace; its watches are cluster-wide."""
    return count_calls(live, RECONCILER, expected)


def test_a_rejected_pod_costs_few_calls_and_then_none(pair: Live) -> None:
    pair.create_pod(annotations={"example.bowline.dev/fail-attempts": "99"})
    pair.request_bind(backoffLimit=2)
    failed = pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    refused: Calls = Counter(
        {
            # Each failure: the pod's condition, the request's status, an event.
            ("patch", "pods/status"): 3,
            ("patch", "bindrequests/status"): 3,
            ("create", "events"): 3,
            # Before each further attempt: is the request still valid?
            ("get", "bindrequests"): 2,
        }
    )
    assert spent(pair, refused) == refused
    # Later changes of the pod cause no calls.
    for value in ("one", "two"):
        pair.kubectl("annotate", "pod", "pod", f"touched={value}", "--overwrite")
    pair.create_pod("other")
    pair.request_bind("other")
    pair.phase("other", "Succeeded")
    pair.event("other", "Bound")
    bound: Calls = Counter(PLAIN_BIND)
    assert spent(pair, refused + bound) == refused + bound
    assert pair.request()["metadata"]["resourceVersion"] == failed["metadata"]["resourceVersion"]


def test_a_pod_that_can_never_be_bound_costs_three_writes_and_one_read(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(node="nowhere")
    pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    # Node reads have no namespace.
    lost: Calls = Counter({("patch", "pods/status"): 1, ("patch", "bindrequests/status"): 1, ("create", "events"): 1})
    assert spent(pair, lost) == lost


def test_many_binds_cost_no_read_of_completed_requests(pair: Live) -> None:
    """Completed requests that the watches report behind a long queue cause no calls."""
    (reconciler,) = pair.pair.reconcilers
    assert reconciler.stop()
    pods = [f"pod-{number}" for number in range(100)]
    pair.create(*(pod(name) for name in pods))
    found = pair.cluster.api.get(f"/api/v1/namespaces/{pair.namespace}/pods")["items"]
    uids = {one["metadata"]["name"]: one["metadata"]["uid"] for one in found}
    pair.create(*(bind_request(name, "gpu-node-0", uid=uids[name]) for name in pods))
    pair.pair.launch_reconciler().wait_ready()
    for name in pods:
        pair.phase(name, "Succeeded")
    hundred: Calls = Counter(dict.fromkeys(PLAIN_BIND, 100))
    assert spent(pair, hundred) == hundred
    # The watches have delivered all of their events before the event of one more.
    pair.create_pod("last")
    pair.request_bind("last")
    pair.phase("last", "Succeeded")
    pair.event("last", "Bound")
    expected: Calls = Counter(dict.fromkeys(PLAIN_BIND, 101))
    assert spent(pair, expected) == expected
