"""What an attempt costs the API server, counted in its own audit log."""

from collections import Counter

from tests.audit import calls_about
from tests.live import Live

# Verb and resource.
Calls = Counter[tuple[str, str]]


def calls(live: Live) -> Calls:
    """The reconciler's calls in the test's namespace; its watches are of all namespaces."""
    counted = Counter(
        (
            event["verb"],
            "/".join(filter(None, (event["objectRef"]["resource"], event["objectRef"].get("subresource")))),
        )
        for event in calls_about(live, "bowline-reconciler")
    )
    # Two watches have no common order: a request may be seen before its pod, which is then asked for.
    del counted["get", "pods"]
    return counted


def spent(live: Live, expected: Calls) -> Calls:
    """The calls, once there are as many as expected: the log is written after the answer."""
    return live.until(
        f"{expected.total()} calls in the audit log",
        lambda: found if (found := calls(live)).total() >= expected.total() else None,
    )


def test_fault_39_a_pod_that_is_refused_costs_a_handful_of_calls_and_then_none(pair: Live) -> None:
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
            # Before each further attempt: does the request still stand?
            ("get", "bindrequests"): 2,
        }
    )
    assert spent(pair, refused) == refused
    # What happens to the pod later costs nothing more.
    for value in ("one", "two"):
        pair.kubectl("annotate", "pod", "pod", f"touched={value}", "--overwrite")
    pair.create_pod("other")
    pair.request_bind("other")
    pair.phase("other", "Succeeded")
    pair.event("other", "Bound")
    bound: Calls = Counter(
        {("create", "pods/binding"): 1, ("patch", "bindrequests/status"): 1, ("create", "events"): 1}
    )
    assert spent(pair, refused + bound) == refused + bound
    assert pair.request()["metadata"]["resourceVersion"] == failed["metadata"]["resourceVersion"]


def test_a_pod_that_can_never_be_bound_costs_three_writes_and_one_look(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(node="nowhere")
    pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    # Nodes are looked at outside of any namespace.
    lost: Calls = Counter({("patch", "pods/status"): 1, ("patch", "bindrequests/status"): 1, ("create", "events"): 1})
    assert spent(pair, lost) == lost
