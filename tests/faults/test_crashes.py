"""Wherever a reconciler is killed while it binds a share: the same final state, one Binding, nothing left over.

The simulation kills and disturbs at every request of its stories. Here it is a real process, the chart's rights and
policies, and the API server.
"""

from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

from bowline.api import names
from bowline.testing.fault_proxy.faults import LoseReply
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.audit import call_of, calls_about, once_logged
from tests.faults.lab import ACCOUNT, Lab, Reconciler, is_leading
from tests.faults.share import is_bound, play, reservations, share_maps, state_of
from tests.live import LiveCluster

# Written in the background, beside a bind or after it.
BEST_EFFORT = (("events", ""), ("pods", "status"))
# Of a bind of a share at least these are disturbed.
EXPECTED = {
    ("create", "pods", ""),
    ("patch", "pods", ""),
    ("create", "configmaps", ""),
    ("create", "pods", "binding"),
    ("patch", names.PLURAL, ""),
    ("patch", names.PLURAL, "status"),
}


def writes_of(reconciler: Reconciler, live: LiveCluster) -> list[CallMatch]:
    """Bind a share undisturbed; return each kind of write once, without a namespace if it is that of the run."""
    before = reconciler.proxy.latest()

    def writes() -> list[Exchange]:
        exchanges = [each for each in reconciler.proxy.exchanges(before) if each.call.writes]
        return [each for each in exchanges if each.call.namespace in (live.namespace, names.RESERVATION_APP)]

    def kinds() -> set[tuple[str, str, str]]:
        return {(each.call.verb, each.call.resource, each.call.subresource) for each in writes()}

    play(live)
    live.until("the undisturbed run ends", lambda: is_bound(live))
    # The proxy records an exchange after the API server has stored the write.
    live.until(f"all of {EXPECTED} are recorded", lambda: kinds() >= EXPECTED)
    # A denied request leaves nothing to disturb, and all runs would have the same result without it.
    assert [str(each.call) for each in writes() if each.code == HTTPStatus.FORBIDDEN] == []
    matches = {
        CallMatch(
            (each.call.verb,),
            each.call.resource,
            each.call.subresource,
            each.call.namespace.replace(live.namespace, ""),
        )
        for each in writes()
    }
    return sorted((match for match in matches if (match.resource, match.subresource) not in BEST_EFFORT), key=str)


def crash_at(reconciler: Reconciler, live: LiveCluster, match: CallMatch) -> None:
    """Bind a share, and kill the reconciler when its first such write was executed and the reply is due."""
    kills: list[CallMatch] = []

    def kill() -> None:
        kills.append(match)
        reconciler.kill()

    fault = FaultRule(LoseReply(kill), replace(match, namespace=match.namespace or live.namespace), nth=1)
    reconciler.proxy.add(fault)
    play(live)
    live.until(f"it is killed at {match}", lambda: bool(kills))
    reconciler.proxy.clear()
    reconciler.restart()
    live.until(f"the run that was killed at {match} ends", lambda: is_bound(live))


def bindings(live: LiveCluster) -> list[Any]:
    """Return the Bindings that the API server has executed in the run."""
    return [
        event
        for event in calls_about(live, ACCOUNT)
        if call_of(event) == ("create", "pods/binding") and event["responseStatus"]["code"] < HTTPStatus.BAD_REQUEST
    ]


def test_a_crash_before_the_reply_to_a_write_of_a_share_changes_nothing(lab: Lab) -> None:
    undisturbed = lab.namespace("share")
    with lab.reconciler("crashing") as reconciler:
        undisturbed.until("it leads", lambda: is_leading(reconciler))
        runs = {"undisturbed": undisturbed}
        for match in writes_of(reconciler, undisturbed):
            runs[str(match)] = lab.namespace("share")
            crash_at(reconciler, runs[str(match)], match)
        expected = state_of(undisturbed)
        assert {name: state_of(live) for name, live in runs.items()} == dict.fromkeys(runs, expected)
        for name, live in runs.items():
            assert len(once_logged(live, 1, partial(bindings, live))) == 1, name
        for live in runs.values():
            path = f"/api/v1/namespaces/{live.namespace}/pods/pod"
            live.cluster.api.request("DELETE", path, {"gracePeriodSeconds": 0})
        for name, live in runs.items():
            live.until(
                f"nothing is left of {name}",
                lambda live=live: not reservations(live) and not share_maps(live),  # type: ignore[misc]
            )
        reconciler.check()
