"""The API calls of an attempt, counted in the API server's audit log."""

from collections import Counter

from bowline.testing.builders import bind_request, pod
from tests.audit import PLAIN_BIND, Calls, count_calls
from tests.live import Live

RECONCILER = "bowline-reconciler"


def calls_made(live: Live, expected: Calls) -> Calls:
    """The reconciler's calls in the test's namespace; its watches are cluster-wide."""
    return count_calls(live, RECONCILER, expected)


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
