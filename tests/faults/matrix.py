"""The crash matrix: a scenario in which the reconciler is killed at every write must always end in the same state.

The points are counted, not listed: the undisturbed run uses the proxy, and each of its writes is a point, at which
the API server has executed the write and the reconciler is killed before it receives the reply.
"""

import http.client
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from bowline.api import names
from bowline.kube.resources import SELF_SUBJECT_REVIEWS
from bowline.testing.fault_proxy.faults import LoseReply
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.faults.lab import POLL_S, Lab, Reconciler
from tests.faults.scenarios import Scenario, remove
from tests.faults.stored import State, differences, left_behind, state_of
from tests.live import LiveCluster
from tests.waiting import LIMIT_S

# How long a point may stay unmet when all has ended: events and pod conditions are written in the background. Only a
# failing test waits so long for a point that every run meets.
_CERTAIN_MEETS_S, _MEETS_S = 60.0, 5.0
# Lists and scans of a process that has just become leader are over when there was no request for so long.
_QUIET_S = 0.5
# How often the undisturbed run is repeated when the machine has disturbed it.
_UNDISTURBED_RUNS = 5
# In a point, replaces the namespace of the run.
_RUN = "{run}"


@dataclass(frozen=True, slots=True)
class Point:
    """The nth write of its kind."""

    match: CallMatch
    nth: int

    def __str__(self) -> str:
        return f"{self.match.verbs[0]} {self.match.resource}/{self.match.subresource} #{self.nth}"

    @property
    def is_certain(self) -> bool:
        """Whether every run sends it: conditions of pods are best effort."""
        return (self.match.resource, self.match.subresource) != ("pods", "status")

    def within(self, namespace: str) -> CallMatch:
        """The writes that are counted in one run."""
        return _replaced(self.match, _RUN, namespace)


@dataclass(slots=True)
class Run:
    """One run of a scenario; without a point it is the undisturbed one."""

    scenario: Scenario
    live: LiveCluster
    point: Point | None = None
    expected: State = field(default_factory=dict)
    fault_met: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{self.scenario.name} in {self.live.namespace}, {self.point or 'undisturbed'}"


class Matrix:
    """Runs scenarios with one reconciler at a time."""

    def __init__(self, lab: Lab, reconciler: Reconciler) -> None:
        self.runs: list[Run] = []
        self._lab = lab
        self._reconciler = reconciler

    def sweep(self, scenario: Scenario, part: slice = slice(None)) -> None:
        """Run the scenario undisturbed, then with a kill at each of its writes; raises at the first wrong end.

        ``part``: of the writes.
        """
        reference_run, points = self._run_undisturbed(scenario)
        for point in points[part]:
            run = Run(scenario, self._lab.namespace(scenario.name), point, reference_run.expected)
            self.runs.append(run)
            self._run_disturbed(run)

    def conclude(self) -> None:
        """Read all final states once more, for late changes; delete the objects.

        Every write must have been met: a matrix that disturbs nothing must not pass.
        """
        for run in self.runs:
            state = state_of(run.live)
            assert state == run.expected, f"{run} has changed after its end: {differences(run.expected, state)}"
        for run in self.runs:
            remove(run.live, f"/api/v1/namespaces/{run.live.namespace}/pods")
        for run in self.runs:
            run.live.until(f"nothing is left of {run}", lambda live=run.live: not left_behind(live))  # type: ignore[misc]
        points = [(run, run.point) for run in self.runs if run.point is not None]
        assert points
        missed_runs = [str(run) for run, point in points if point.is_certain and not run.fault_met.is_set()]
        assert not missed_runs, f"never met: {'; '.join(missed_runs)}"

    def _run_undisturbed(self, scenario: Scenario) -> tuple[Run, Sequence[Point]]:
        """Run the scenario until one leader leads during a whole run: it loses its Lease on an overloaded machine."""
        for _ in range(_UNDISTURBED_RUNS):
            run, calls = self._play(scenario)
            self.runs.append(run)
            if _is_steady(calls):
                return run, _points_of(calls, run.live.namespace)
        raise AssertionError(f"{scenario.name}: the leader changed or a call failed in every undisturbed run")

    def _play(self, scenario: Scenario) -> tuple[Run, Sequence[Exchange]]:
        """Run the scenario undisturbed; returns the run and its requests."""
        run = Run(scenario, self._lab.namespace(scenario.name))
        live = run.live
        before = self._quiescent(live)
        scenario.play(live)
        live.until(f"{run} ends", lambda: scenario.ended(live))
        live.event("pod", scenario.last_event)
        run.expected = state_of(live)
        calls = self._reconciler.proxy.exchanges(before)
        # A denied request leaves nothing to disturb, and all runs would have the same result without it.
        denials = [f"{e.call.kind} {e.call.name}" for e in calls if e.code == HTTPStatus.FORBIDDEN]
        assert not denials, f"{run}: the API server denies {', '.join(denials)}"
        reasons = [request["reason"] for request in run.expected["requests"].values()]
        assert set(reasons) <= {scenario.reason}, f"{run} ends with {reasons}, not with {scenario.reason!r}"
        return run, calls

    def _quiescent(self, live: LiveCluster) -> int:
        """Wait until the process leads and has completed its initial work; returns the number of its last request."""
        live.until("it leads", lambda: is_leading(self._reconciler))
        last, since = 0, time.monotonic()

        def quiet() -> bool:
            nonlocal last, since
            numbers = [e.number for e in self._reconciler.proxy.exchanges() if e.call.resource != "leases"]
            if numbers[-1] != last:
                last, since = numbers[-1], time.monotonic()
            return time.monotonic() > since + _QUIET_S

        live.until("it has nothing to do", quiet)
        return last

    def _run_disturbed(self, run: Run) -> None:
        assert run.point is not None

        def kill() -> None:
            if not run.fault_met.is_set():
                self._reconciler.kill()
                run.fault_met.set()

        match = run.point.within(run.live.namespace)
        self._reconciler.proxy.add(FaultRule(LoseReply(kill), match, nth=run.point.nth))
        with ThreadPoolExecutor(1) as executor:
            self._live_through(run, run.point, executor.submit(run.scenario.play, run.live))
        self._reconciler.proxy.clear()

    def _live_through(self, run: Run, point: Point, play: "Future[None]") -> None:
        """Restart the reconciler when it is killed, until the point has been met and the scenario has ended."""
        deadline = time.monotonic() + LIMIT_S
        is_restarted = False
        ended_at = 0.0
        while True:
            if run.fault_met.is_set() and not is_restarted:
                self._reconciler.proxy.clear()
                self._reconciler.restart()
                is_restarted = True
            if is_restarted:
                self._reconciler.check()
            if self._has_ended(run, play, deadline):
                ended_at = ended_at or time.monotonic()
                # A background write, such as an event, may be met after the end.
                meets_s = _CERTAIN_MEETS_S if point.is_certain else _MEETS_S
                if is_restarted or time.monotonic() > ended_at + meets_s:
                    return
            time.sleep(POLL_S)

    def _has_ended(self, run: Run, play: "Future[None]", deadline: float) -> bool:
        if play.done():
            play.result()
            state = state_of(run.live)
            if state == run.expected:
                return True
            if time.monotonic() > deadline:
                log = self._reconciler.tail()
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


def _points_of(exchanges: Sequence[Exchange], namespace: str) -> list[Point]:
    """Return the points of a run that has sent these requests.

    Only one run is active at a time: requests for its namespace, the reservations and cluster-scoped objects are its
    own. Their kinds are distinguished by name only where no namespace separates runs.
    """
    points: list[Point] = []
    for exchange in exchanges:
        call = exchange.call
        if not call.resource or not call.writes or call.namespace not in ("", namespace, names.RESERVATION_APP):
            continue
        name = "" if call.namespace else call.name
        kind = _replaced(
            CallMatch((call.verb,), call.resource, call.subresource, call.namespace, name), namespace, _RUN
        )
        points.append(Point(kind, 1 + sum(point.match == kind for point in points)))
    return points


def _replaced(match: CallMatch, old: str, new: str) -> CallMatch:
    return replace(match, namespace=match.namespace.replace(old, new), name=match.name.replace(old, new))


def _is_steady(exchanges: Sequence[Exchange]) -> bool:
    """Return whether one leader has sent the requests and none has failed in the API server: no term starts here."""
    starts = any(exchange.call.resource == SELF_SUBJECT_REVIEWS.plural for exchange in exchanges)
    return not starts and all(
        exchange.code is not None and exchange.code < HTTPStatus.INTERNAL_SERVER_ERROR for exchange in exchanges
    )
