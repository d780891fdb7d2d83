"""A leader that was stopped (SIGSTOP) for longer than its Lease, and continues after another one has led and bound.

The reply to one of its writes arrives while it is stopped, so that the next write of the attempt is due as soon as it
continues, before any timer. Decision 120.
"""

from bowline.testing.fault_proxy.faults import FaultGate, Hold
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.faults.lab import Lab
from tests.faults.matrix import is_leading
from tests.faults.scenarios import FRACTION
from tests.faults.stored import state_of
from tests.waiting import LIMIT_S

# What it sends for itself: a renewal, which is refused, and the question who it is.
_OWN = ("leases", "selfsubjectreviews")


def test_a_leader_that_continues_after_another_one_has_led_writes_nothing(lab: Lab) -> None:
    live = lab.namespace("stopped")
    with lab.reconciler("one") as first_reconciler, lab.reconciler("other") as second_reconciler:
        live.until("one leads", lambda: is_leading(first_reconciler) or is_leading(second_reconciler))
        former_leader, successor = (
            (first_reconciler, second_reconciler)
            if is_leading(first_reconciler)
            else (second_reconciler, first_reconciler)
        )
        gate = FaultGate()
        match = CallMatch(("patch",), "pods", "", live.namespace)
        former_leader.proxy.add(FaultRule(Hold(gate, outlives=True), match, nth=1))
        FRACTION.play(live)
        assert gate.wait_reached(LIMIT_S)
        assert former_leader.process is not None
        former_leader.process.process.pause()
        gate.open()
        live.until("the other one leads", lambda: is_leading(successor))
        live.until("it has bound the pod", lambda: FRACTION.ended(live))
        before, state = former_leader.proxy.latest(), state_of(live)

        def exchanges() -> list[Exchange]:
            return [e for e in former_leader.proxy.exchanges(before) if e.number > before]

        former_leader.process.process.resume()
        live.until("the stopped one follows the Lease again", lambda: any(map(_reads_lease, exchanges())))
        assert [str(e.call) for e in exchanges() if e.call.writes and e.call.resource not in _OWN] == []
        assert [str(e.call) for e in exchanges() if e.call.resource == "leases" and e.applied and e.call.writes] == []
        assert state_of(live) == state
        former_leader.check()


def _reads_lease(exchange: Exchange) -> bool:
    return exchange.call.resource == "leases" and not exchange.call.writes
