"""What an attempt costs the API server, counted in its own audit log."""

from collections import Counter

from tests.audit import calls_about
from tests.live import Live


def calls(live: Live) -> Counter[tuple[str, str]]:
    """Verb and resource of the reconciler's calls in the test's namespace; its watches are of all namespaces."""
    return Counter(
        (
            event["verb"],
            "/".join(filter(None, (event["objectRef"]["resource"], event["objectRef"].get("subresource")))),
        )
        for event in calls_about(live, "bowline-reconciler")
    )


def test_fault_39_a_pod_that_is_refused_costs_a_handful_of_calls_and_then_none(pair: Live) -> None:
    pair.create_pod(annotations={"example.bowline.dev/fail-attempts": "99"})
    pair.request_bind(backoffLimit=2)
    failed = pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    spent = calls(pair)
    assert spent == Counter(
        {
            # Each failure: the pod's condition, the request's status, an event.
            ("patch", "pods/status"): 3,
            ("patch", "bindrequests/status"): 3,
            ("create", "events"): 3,
            # Before each further attempt: does the request still stand?
            ("get", "bindrequests"): 2,
        }
    )
    # What happens to the pod later costs nothing more.
    for value in ("one", "two"):
        pair.kubectl("annotate", "pod", "pod", f"touched={value}", "--overwrite")
    pair.create_pod("other")
    pair.request_bind("other")
    pair.phase("other", "Succeeded")
    pair.event("other", "Bound")
    more = calls(pair) - spent
    assert more == Counter(
        {("create", "pods/binding"): 1, ("patch", "bindrequests/status"): 1, ("create", "events"): 1}
    )
    assert pair.request()["metadata"]["resourceVersion"] == failed["metadata"]["resourceVersion"]


def test_a_pod_that_can_never_be_bound_costs_three_writes_and_one_look(pair: Live) -> None:
    pair.create_pod()
    pair.request_bind(node="nowhere")
    pair.phase("pod", "Failed")
    pair.event("pod", "BindingFailed")
    assert calls(pair) == Counter(
        {("patch", "pods/status"): 1, ("patch", "bindrequests/status"): 1, ("create", "events"): 1}
    ), "nodes are looked at outside of any namespace"
