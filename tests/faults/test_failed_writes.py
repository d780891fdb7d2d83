"""The complement of the crash matrix: each write of a terminal decision fails, and the process goes on.

The reason of the decision is gone before the write is repeated: a reconciler that decided anew would bind a pod after
what it needs was rolled back. Whatever fails, the request is Failed and nothing of it is left. The points are
counted, as in the crash matrix: each write of the undisturbed run from the decision on, for each way of failing.

The short form runs with all tests: of each scenario, one request of each kind, the last one, answered with 503.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.faults import DropBefore, FaultAnswer, LoseReply, RequestFault
from bowline.testing.fault_proxy.rules import FaultRule
from tests.faults.endstate import left_of
from tests.faults.lab import Lab, Reconciler
from tests.faults.matrix import is_leading
from tests.faults.plugin_scenarios import ask_for_share, post_share, share_body
from tests.faults.plugins.fault_effects import EFFECT, GATE
from tests.faults.points import Mode, Point, is_certain, last_of_each, points_of
from tests.faults.scenarios import NODE, effects, make_gate, make_pod, make_request
from tests.faults.truth import TruthObserver
from tests.live import LiveCluster
from tests.plugins.claims import extended_decision, publish

FAULTS: Mapping[str, RequestFault] = {
    "409": FaultAnswer(409),
    "429": FaultAnswer(429, retry_after_s=1),
    "503": FaultAnswer(503),
    "no reply": LoseReply(),
    "not sent": DropBefore(),
}
_WAITS = {EFFECT: "yes", GATE: "gate"}
_EXTENDED = "gpu.example.com/gpu"
_TAINT = {"key": "example.com/trouble", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Change:
    """What ends a request, as a patch of its node's spec, and what takes that back."""

    name: str
    trouble: Mapping[str, Any]
    repair: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A pod for which everything is prepared and whose request waits for its gate."""

    name: str
    make: Callable[[LiveCluster], None]


def _plain(live: LiveCluster) -> None:
    make_request(live, make_pod(live, tolerations=[]), _WAITS)


def _share(live: LiveCluster) -> None:
    ask_for_share(live, post_share(live, share_body(live, tolerations=[])), "a", annotations=_WAITS)


def _extended(live: LiveCluster) -> None:
    publish(live.cluster)
    container = {"name": "main", "image": "registry.example/app:1", "resources": {"limits": {_EXTENDED: "1"}}}
    uid = make_pod(live, containers=[container], tolerations=[])
    make_request(live, uid, _WAITS, **extended_decision(_EXTENDED))


PREPARED = (Prepared("effect", _plain), Prepared("share", _share), Prepared("extended", _extended))
CHANGES = (
    Change("cordon", {"unschedulable": True}, {"unschedulable": None}),
    Change("taint", {"taints": [_TAINT]}, {"taints": None}),
)


@pytest.mark.parametrize("preparation", PREPARED, ids=lambda preparation: preparation.name)
def test_a_terminal_decision_is_finished_although_its_reason_is_gone(
    lab: Lab, truth: TruthObserver, preparation: Prepared
) -> None:
    with lab.reconciler("failing") as reconciler:
        points = _undisturbed(lab, reconciler, preparation, CHANGES[0])
        for point in last_of_each(points):
            _disturbed(lab, reconciler, preparation, CHANGES[0], point, FAULTS["503"])
            truth.check()


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
@pytest.mark.parametrize("preparation", PREPARED, ids=lambda preparation: preparation.name)
def test_every_failure_of_every_write_of_a_terminal_decision(
    lab: Lab, truth: TruthObserver, preparation: Prepared, change: Change
) -> None:
    with lab.reconciler("failing") as reconciler:
        points = _undisturbed(lab, reconciler, preparation, change)
        for point in points:
            for fault in FAULTS.values():
                _disturbed(lab, reconciler, preparation, change, point, fault)
                truth.check()


def _undisturbed(lab: Lab, reconciler: Reconciler, preparation: Prepared, change: Change) -> Sequence[Point]:
    """Return the writes from the decision to its end."""
    live = _prepare(lab, reconciler, preparation)
    since = reconciler.proxy.latest()
    try:
        _change_node(lab, change.trouble)
        _ends_without_a_trace(live)
    finally:
        _change_node(lab, change.repair)
    points = points_of(reconciler.proxy.exchanges(since), live.namespace, [Mode.LOST_REPLY])
    assert points
    # What the attempt created may be recorded late; events are best effort.
    return [point for point in points if is_certain(point) and point.match.verbs != ("create",)]


def _disturbed(
    lab: Lab, reconciler: Reconciler, preparation: Prepared, change: Change, point: Point, fault: RequestFault
) -> None:
    """Run once more; at the point the write fails, and the node is usable again before the failure is known."""
    live = _prepare(lab, reconciler, preparation)
    match, met, count = point.within(live.namespace), threading.Event(), 0

    def repair(_: ProxiedCall) -> None:
        nonlocal count
        count += 1
        if count == point.nth:
            _change_node(lab, change.repair)
            make_gate(live)
            met.set()

    reconciler.proxy.inspect(match, repair)
    reconciler.proxy.add(FaultRule(fault, match, nth=point.nth))
    try:
        _change_node(lab, change.trouble)
        _ends_without_a_trace(live)
        live.until(f"{point} is met", met.is_set)
    finally:
        reconciler.proxy.clear()
        _change_node(lab, change.repair)
    reconciler.check()
    _ends_without_a_trace(live)


def _prepare(lab: Lab, reconciler: Reconciler, preparation: Prepared) -> LiveCluster:
    live = lab.namespace(f"failed-{preparation.name}")
    live.until("it leads", lambda: is_leading(reconciler))
    preparation.make(live)
    live.until("everything is prepared", lambda: effects(live) > 0)
    return live


def _change_node(lab: Lab, spec: Mapping[str, Any]) -> None:
    lab.cluster.api.patch(f"/api/v1/nodes/{NODE}", {"spec": dict(spec)})


def _ends_without_a_trace(live: LiveCluster) -> None:
    status = live.phase("pod", "Failed", "Succeeded")["status"]
    assert status["phase"] == "Failed", "the pod is bound after its rollback"
    assert status["reason"].startswith("NodeUnschedulable")
    live.until("nothing is left", lambda: not left_of(live) and not live.request()["metadata"].get("finalizers"))
    assert not live.pod()["spec"].get("nodeName")
