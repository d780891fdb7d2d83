"""The crash matrix: one scenario, disturbed at every possible point, must always end in the same state.

The points are counted, not listed (``points``): the undisturbed run uses the proxy, and each of its requests
is a point for each applicable way of disturbing.

    BEFORE_REPLY  the API server has executed a write; the reconciler is killed before it receives the reply
    READ          the reconciler is killed before it receives the reply to a read
    AFTER_REPLY   the reconciler has the reply to a write and is killed before its next request is sent
    LOST_REPLY    the reply to a write is lost; the reconciler continues
    OVERLAP       a write is in flight while another reconciler takes over; it arrives when that one is done or, in
                  case of a rollback, when that one leads: it waits for such a write before it undoes anything

Two invariants are checked during a run, not at its end: no claim is false (``truth``), and no reconciler drops or
adds the finalizer of a request while effects of it exist: the finalizer is their record. Decisions 20 and 81.
"""

import http.client
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus

from bowline.api import names
from bowline.localcluster.errors import LocalApiError
from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.faults import AfterReply, DropBefore, FaultGate, Hold, LoseReply
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.faults.endstate import ORPHAN, State, deeds, left_of, state_of
from tests.faults.lab import POLL_S, Lab, Reconciler
from tests.faults.points import Mode, Point, all_of_run, is_certain, is_steady, last_of_each, points_of
from tests.faults.runs import Run, answered_late, differences, left_behind, miscounts
from tests.faults.scenarios import Scenario, remove
from tests.faults.truth import TruthObserver
from tests.live import LiveCluster
from tests.plugins.storage import Storage
from tests.waiting import LIMIT_S

# How long a point may stay unmet when all has ended: events are written in the background, reads are not. Only a
# failing test waits so long for a point that every run meets.
_CERTAIN_MEETS_S = 60.0
_MEETS_S = 10.0
_READ_MEETS_S = 1.0
# A delayed write is sent during the scenario, which may wait and retry before.
_REACHES_S = 30.0
# Lists and scans of a process that has just become leader are over when there was no request for so long.
_QUIET_S = 0.5
# How often the undisturbed run is repeated when the machine has disturbed it.
_UNDISTURBED_RUNS = 5
# Patches of the request itself add and remove the finalizer.
_HANDLES = CallMatch(("patch",), names.PLURAL, "")


class Matrix:
    """Runs scenarios with one reconciler at a time; ``spare`` takes over where leaders overlap."""

    def __init__(self, lab: Lab, truth: TruthObserver, current: Reconciler, spare: Reconciler | None = None) -> None:
        self.runs: list[Run] = []
        self._lab = lab
        self._truth = truth
        self._current = current
        self._spare = spare
        self._unrecorded_effects: list[str] = []
        for reconciler in filter(None, (current, spare)):
            reconciler.proxy.inspect(_HANDLES, self._check_effects)

    def sweep(self, scenario: Scenario, modes: Sequence[Mode], *, one_of_each: bool = False) -> State:
        """Run the scenario undisturbed, then disturbed at every point; raises at the first wrong end.

        Returns the common final state. ``one_of_each``: of points that differ in their number alone, the last one.
        """
        reference_run, points = self._run_undisturbed(scenario, modes)
        if one_of_each:
            points = last_of_each(points)
        for point in points:
            run = Run(scenario, self._lab.namespace(scenario.name), point, reference_run.expected)
            self.runs.append(run)
            self._run_disturbed(run)
        return reference_run.expected

    def conclude(self) -> None:
        """Verify all runs, delete their objects, and print how many points were met.

        Every write must have been met: a matrix that disturbs nothing must not pass. Two kinds of requests may be
        absent. How often a waiting request is read again depends on time. And pod conditions are best effort: the
        newest of each pod is written in the background, and replaces one that is still pending.
        """
        self.verify()
        self.dissolve()
        sys.stdout.write("\n".join(["", *self.report(), ""]))
        points = [(run, run.point) for run in self.runs if run.point is not None]
        assert points
        missed_runs = [str(run) for run, point in points if is_certain(point) and not run.fault_met.is_set()]
        assert not missed_runs, f"never met: {'; '.join(missed_runs)}"

    def verify(self) -> None:
        """Read all final states once more, for late changes; and count what was really done."""
        deeds_by_namespace = deeds(self._lab.cluster)
        for run in self.runs:
            state = state_of(run.live)
            assert state == run.expected, f"{run} has changed after its end: {differences(run.expected, state)}"
            assert not (wrong := miscounts(run, deeds_by_namespace)), f"{run}: {'; '.join(wrong)}"
        self._check()

    def dissolve(self) -> None:
        """Delete the pods of all runs and wait until everything that belonged to them is deleted; volumes remain."""
        for run in self.runs:
            remove(run.live, f"/api/v1/namespaces/{run.live.namespace}/pods")
        for run in self.runs:
            run.live.until(f"nothing is left of {run}", lambda live=run.live: not left_behind(live))  # type: ignore[misc]
            Storage(run.live).clean()

    def report(self) -> list[str]:
        """One line per scenario and mode: points, and how many of them were met."""
        counts: Counter[tuple[str, Mode]] = Counter()
        hits: Counter[tuple[str, Mode]] = Counter()
        for run in self.runs:
            if run.point is not None:
                counts[run.scenario.name, run.point.mode] += 1
                hits[run.scenario.name, run.point.mode] += run.fault_met.is_set()
        return [f"{name:<18} {mode.value:<28} {hits[name, mode]:>3} of {n}" for (name, mode), n in counts.items()]

    # --- one run ---

    def _run_undisturbed(self, scenario: Scenario, modes: Sequence[Mode]) -> tuple[Run, Sequence[Point]]:
        """Run the scenario until one leader leads during a whole run: it loses its Lease on an overloaded machine."""
        for _ in range(_UNDISTURBED_RUNS):
            run, calls = self._play(scenario)
            self.runs.append(run)
            if is_steady(calls):
                return run, points_of(calls, run.live.namespace, modes)
        raise AssertionError(f"{scenario.name}: the leader changed or a call failed in every undisturbed run")

    def _play(self, scenario: Scenario) -> tuple[Run, Sequence[Exchange]]:
        """Run the scenario undisturbed; returns the run and its requests."""
        run = Run(scenario, self._lab.namespace(scenario.name))
        live, proxy = run.live, self._current.proxy
        before = self._quiescent(live)
        scenario.play(live)
        live.until(f"{run} ends", lambda: scenario.ended(live))
        if scenario.last_event:
            live.event("pod", scenario.last_event)
        run.expected = state_of(live)
        assert ORPHAN not in run.expected["effects"], f"{run} leaves an effect behind"
        calls = proxy.exchanges(before)
        # A denied request leaves nothing to disturb, and all runs would have the same result without it.
        denials = [
            f"{exchange.call.kind} {exchange.call.name}"
            for exchange in calls
            if exchange.code == HTTPStatus.FORBIDDEN
        ]
        assert not denials, f"{run}: the API server denies {', '.join(denials)}"
        reasons = [request["reason"] for request in run.expected["requests"].values()]
        assert set(reasons) <= {scenario.reason}, f"{run} ends with {reasons}, not with {scenario.reason!r}"
        return run, calls

    def _quiescent(self, live: LiveCluster) -> int:
        """Wait until the process leads and has completed its initial work; returns the number of its last request."""
        live.until("it leads", lambda: is_leading(self._current))
        last, since = 0, time.monotonic()

        def quiet() -> bool:
            nonlocal last, since
            numbers = [e.number for e in self._current.proxy.exchanges() if e.call.resource != "leases"]
            if numbers[-1] != last:
                last, since = numbers[-1], time.monotonic()
            return time.monotonic() > since + _QUIET_S

        live.until("it has nothing to do", quiet)
        return last

    def _run_disturbed(self, run: Run) -> None:
        self._arm(run)
        with ThreadPoolExecutor(1) as world:
            play = world.submit(run.scenario.play, run.live)
            if run.point is not None and run.point.mode is Mode.OVERLAP:
                self._overtake(run, play)
            else:
                self._live_through(run, play)
        self._current.proxy.clear()

    def _arm(self, run: Run) -> None:
        assert run.point is not None
        current, match, nth = self._current, run.point.within(run.live.namespace), run.point.nth

        def kill() -> None:
            if not run.fault_met.is_set():
                current.kill()
                run.fault_met.set()

        def kill_at_next() -> None:
            run.gate.arrive()
            current.proxy.add(
                *(FaultRule(DropBefore(kill), match_of_run) for match_of_run in all_of_run(run.live.namespace))
            )

        match run.point.mode:
            case Mode.BEFORE_REPLY | Mode.READ:
                current.proxy.add(FaultRule(LoseReply(kill), match, nth=nth))
            case Mode.AFTER_REPLY:
                current.proxy.add(FaultRule(AfterReply(kill_at_next), match, nth=nth))
            case Mode.LOST_REPLY:
                current.proxy.add(FaultRule(LoseReply(run.fault_met.set), match, nth=nth))
            case Mode.OVERLAP:
                current.proxy.add(FaultRule(Hold(run.gate, outlives=True), match, nth=nth))

    def _live_through(self, run: Run, play: "Future[None]") -> None:
        """Restart the reconciler when it is killed, until the point has been met and the scenario has ended."""
        assert run.point is not None
        kills = run.point.mode is not Mode.LOST_REPLY
        meets_s = _READ_MEETS_S if run.point.mode is Mode.READ else _MEETS_S
        if is_certain(run.point):
            meets_s = _CERTAIN_MEETS_S
        deadline = time.monotonic() + LIMIT_S
        is_restarted = False
        ended_at = 0.0
        while True:
            self._check()
            if kills and run.fault_met.is_set() and not is_restarted:
                self._current.proxy.clear()
                self._current.restart()
                is_restarted = True
            if is_restarted:
                self._current.check()
            if self._has_ended(run, play, deadline):
                ended_at = ended_at or time.monotonic()
                # A background write, such as an event, may be met after the end.
                if run.fault_met.is_set() and (is_restarted or not kills):
                    return
                if run.gate.wait_reached(0) or time.monotonic() > ended_at + meets_s:
                    break
            time.sleep(POLL_S)
        if run.gate.wait_reached(0):
            # After the very last reply there is no next request to be killed at.
            self._current.restart()
            run.fault_met.set()

    def _overtake(self, run: Run, play: "Future[None]") -> None:
        """Let the spare take over while a write of the current one is in flight.

        The Lease expires by itself: a leader that cannot renew it has stopped by then, except for what it has sent.
        """
        assert self._spare is not None
        if not run.gate.wait_reached(_REACHES_S):
            play.result()
            return
        overtaken, self._current, self._spare = self._current, self._spare, self._current
        before, lease = answered_late(overtaken), FaultGate()
        overtaken.proxy.add(FaultRule(Hold(lease), CallMatch(resource="leases")))
        self._current.start()
        if run.scenario.undoes:
            run.live.until("the other one leads", lambda: is_leading(self._current))
            run.gate.open()
        deadline = time.monotonic() + LIMIT_S
        while not self._has_ended(run, play, deadline):
            self._check()
            time.sleep(POLL_S)
        run.live.until("the other one leads", lambda: is_leading(self._current))
        run.gate.open()
        run.live.until("the write arrives", lambda: answered_late(overtaken) > before)
        run.fault_met.set()
        lease.open()
        run.live.until("the overtaken one stops working", lambda: not is_leading(overtaken))
        overtaken.kill()
        overtaken.proxy.clear()

    def _check_effects(self, call: ProxiedCall) -> None:
        """Check which effects exist when a request is patched. On the proxy's thread, which blocks the patch."""
        live = LiveCluster(self._lab.cluster, call.namespace)
        try:
            left = [] if _is_under_way(live, call.name) else left_of(live, call.name)
        except Exception as error:  # noqa: BLE001 - the proxy must continue; raised at the next check
            left = [repr(error)]
        if left:
            self._unrecorded_effects.append(
                f"{call.namespace}: the request is held or let go beside {', '.join(left)}"
            )

    def _check(self) -> None:
        assert not self._unrecorded_effects, "\n".join(self._unrecorded_effects)
        self._truth.check()

    def _has_ended(self, run: Run, play: "Future[None]", deadline: float) -> bool:
        if play.done():
            play.result()
            state = state_of(run.live)
            if state == run.expected:
                return True
            if time.monotonic() > deadline:
                log = self._current.tail()
                raise AssertionError(f"{run} has another final state: {differences(run.expected, state)}\n{log}")
        return False


def is_leading(reconciler: Reconciler) -> bool:
    """Return whether the process leads."""
    if reconciler.process is None or reconciler.process.returncode is not None:
        return False
    try:
        _, page = reconciler.process.get("/metrics")
    except (OSError, http.client.HTTPException):
        return False  # the process is starting or has exited
    return "bowline_leader 1.0" in page


def _is_under_way(live: LiveCluster, name: str) -> bool:
    """Whether the request is in progress and keeps its finalizer: such a patch only records the leader."""
    try:
        request = live.request(name)
    except LocalApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    is_pending = (request.get("status") or {}).get("phase", "Pending") == "Pending"
    return (
        is_pending
        and bool(request["metadata"].get("finalizers"))
        and not request["metadata"].get("deletionTimestamp")
    )
