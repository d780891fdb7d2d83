"""The crash matrix: one scenario, disturbed at every point where it can be, must always come to the same end.

The points are counted, not listed: the undisturbed run goes through the proxy, and each request that it made is a
point for each way of disturbing that applies.

    BEFORE_REPLY  the API server has carried a write out, the reconciler is killed before it hears of it
    READ          the reconciler is killed before it gets what it has asked for
    AFTER_REPLY   the reconciler has the reply to a write and is killed before its next request is sent
    LOST_REPLY    the reply to a write is lost, and the reconciler lives
    OVERLAP       a write is on its way while another reconciler takes over and finishes; then it arrives
"""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from shared.testing.fault_proxy.faults import AfterReply, DropBefore, Gate, Hold, LoseReply
from shared.testing.fault_proxy.rules import Match, Rule
from tests.faults.endstate import ORPHAN, State, deeds, state_of
from tests.faults.lab import Lab, Reconciler
from tests.faults.scenarios import Scenario
from tests.faults.truth import TruthObserver
from tests.live import POLL_S, LiveCluster

# Restarts, a wait of five seconds that is told, retries: an undisturbed story takes up to eight seconds of an idle
# machine, and a run that does not come to its end has nothing better to do than wait.
_DEADLINE_S = 60.0
# How long a point may stay unmet when all has ended: events are written in the background, reads are not.
_MEETS_S = 10.0
_READ_MEETS_S = 1.0


class Mode(Enum):
    """A way of disturbing."""

    BEFORE_REPLY = "killed before the reply"
    READ = "killed while reading"
    AFTER_REPLY = "killed after the reply"
    LOST_REPLY = "reply lost"
    OVERLAP = "overtaken by another leader"


@dataclass(frozen=True, slots=True)
class Point:
    """The nth request of its kind, and what is done to it."""

    mode: Mode
    match: Match  # without a namespace: each run has its own
    nth: int

    def __str__(self) -> str:
        what = "/".join(filter(None, (self.match.resource, self.match.subresource)))
        return f"{self.mode.value}: {self.match.verbs[0]} {what} #{self.nth}"

    def within(self, live: LiveCluster) -> Match:
        """The requests that count, in the namespace of one run."""
        return Match(self.match.verbs, self.match.resource, self.match.subresource, live.namespace)


@dataclass(slots=True)
class Run:
    """One run of a scenario. ``struck``: its point was met; without a point it is the undisturbed one."""

    scenario: Scenario
    live: LiveCluster
    point: Point | None = None
    expected: State = field(default_factory=dict)
    struck: threading.Event = field(default_factory=threading.Event)
    gate: Gate = field(default_factory=Gate)

    def __str__(self) -> str:
        return f"{self.scenario.name}, {self.point or 'undisturbed'} (namespace {self.live.namespace})"


class Matrix:
    """Runs scenarios with one reconciler at a time; ``spare`` is the one that overtakes, where leaders overlap."""

    def __init__(self, lab: Lab, truth: TruthObserver, current: Reconciler, spare: Reconciler | None = None) -> None:
        self.runs: list[Run] = []
        self._lab = lab
        self._truth = truth
        self._current = current
        self._spare = spare

    def sweep(self, scenario: Scenario, modes: Sequence[Mode]) -> None:
        """Run the scenario undisturbed, then disturbed at every point; raises at the first wrong end."""
        undisturbed, points = self._undisturbed(scenario, modes)
        for point in points:
            run = Run(scenario, self._lab.namespace(scenario.name), point, undisturbed.expected)
            self.runs.append(run)
            self._disturbed(run)

    def verify(self) -> None:
        """Look once more at everything, for what came late; and count what was really done."""
        done = deeds(self._lab.cluster)
        for run in self.runs:
            state = state_of(run.live)
            assert state == run.expected, f"{run} has not stayed as it was: {differences(run.expected, state)}"
            did = done[run.live.namespace]
            bound = sum(1 for pod in state["pods"].values() if pod["node"])
            assert did.bindings == bound, f"{run}: {did.bindings} effective Bindings for {bound} bound pods"
            left = did.effects_made - did.effects_removed
            assert left == len(state["effects"]), f"{run}: made and removed do not add up: {did}"
        self._truth.check()

    def report(self) -> list[str]:
        """One line a scenario and mode: points, and how many of them were met."""
        counts: Counter[tuple[str, Mode]] = Counter()
        met: Counter[tuple[str, Mode]] = Counter()
        for run in self.runs:
            if run.point is not None:
                counts[run.scenario.name, run.point.mode] += 1
                met[run.scenario.name, run.point.mode] += run.struck.is_set()
        return [f"{name:<18} {mode.value:<28} {met[name, mode]:>3} of {n}" for (name, mode), n in counts.items()]

    # --- one run ---

    def _undisturbed(self, scenario: Scenario, modes: Iterable[Mode]) -> tuple[Run, Sequence[Point]]:
        run = Run(scenario, self._lab.namespace(scenario.name))
        live = run.live
        scenario.play(live)
        live.until(f"{run} ends", lambda: scenario.ended(live))
        if scenario.last_event:
            live.event("pod", scenario.last_event)
        run.expected = state_of(live)
        assert ORPHAN not in run.expected["effects"], f"{run} leaves an effect behind"
        self.runs.append(run)
        seen: Counter[Match] = Counter()
        points = []
        for exchange in self._current.proxy.exchanges():
            call = exchange.call
            if call.namespace == live.namespace:
                match = Match((call.verb,), call.resource, call.subresource)
                seen[match] += 1
                applicable = [mode for mode in modes if call.writes is not (mode is Mode.READ)]
                points += [Point(mode, match, seen[match]) for mode in applicable]
        return run, points

    def _disturbed(self, run: Run) -> None:
        self._arm(run)
        with ThreadPoolExecutor(1) as world:
            played = world.submit(run.scenario.play, run.live)
            if run.point is not None and run.point.mode is Mode.OVERLAP:
                run.gate.wait_reached(_MEETS_S)
                self._overtake(run, played)
            else:
                self._live_through(run, played)
        self._current.proxy.clear()

    def _arm(self, run: Run) -> None:
        assert run.point is not None
        current, match, nth = self._current, run.point.within(run.live), run.point.nth

        def kill() -> None:
            if not run.struck.is_set():
                current.kill()
                run.struck.set()

        def kill_at_next() -> None:
            run.gate.arrive()
            current.proxy.add(Rule(DropBefore(kill), Match(namespace=run.live.namespace)))

        match run.point.mode:
            case Mode.BEFORE_REPLY | Mode.READ:
                current.proxy.add(Rule(LoseReply(kill), match, nth=nth))
            case Mode.AFTER_REPLY:
                current.proxy.add(Rule(AfterReply(kill_at_next), match, nth=nth))
            case Mode.LOST_REPLY:
                current.proxy.add(Rule(LoseReply(run.struck.set), match, nth=nth))
            case Mode.OVERLAP:
                current.proxy.add(Rule(Hold(run.gate), match, nth=nth))

    def _live_through(self, run: Run, played: "Future[None]") -> None:
        """Start the reconciler anew when it is killed, until the point has been met and all has come to its end."""
        assert run.point is not None
        kills = run.point.mode is not Mode.LOST_REPLY
        meets_s = _READ_MEETS_S if run.point.mode is Mode.READ else _MEETS_S
        deadline = time.monotonic() + _DEADLINE_S
        is_restarted = False
        ended_at = 0.0
        while True:
            self._truth.check()
            if kills and run.struck.is_set() and not is_restarted:
                self._current.proxy.clear()
                self._current.restart()
                is_restarted = True
            if is_restarted:
                self._current.check()
            if self._has_ended(run, played, deadline):
                ended_at = ended_at or time.monotonic()
                # What is done in the background, such as an event, may be met after the end.
                if run.struck.is_set() and (is_restarted or not kills):
                    return
                if run.gate.wait_reached(0) or time.monotonic() > ended_at + meets_s:
                    break
            time.sleep(POLL_S)
        if run.gate.wait_reached(0):
            # After the very last reply there is no next request to be killed at.
            self._current.restart()
            run.struck.set()

    def _overtake(self, run: Run, played: "Future[None]") -> None:
        """Let the spare finish while the current one still believes that it leads and its write is on its way."""
        assert self._spare is not None
        if run.gate.wait_reached(0):
            run.struck.set()
        overtaken, self._current, self._spare = self._current, self._spare, self._current
        lease = Gate()
        overtaken.proxy.add(Rule(Hold(lease), Match(resource="leases")))
        self._current.restart()
        deadline = time.monotonic() + _DEADLINE_S
        while not self._has_ended(run, played, deadline):
            time.sleep(POLL_S)
        run.live.until("the other one leads", lambda: is_leading(self._current))
        before = len(overtaken.proxy.exchanges())
        run.gate.open()
        lease.open()
        run.live.until("the write arrives", lambda: len(overtaken.proxy.exchanges()) > before)
        run.live.until("the overtaken one stops working", lambda: not is_leading(overtaken))
        overtaken.kill()
        overtaken.proxy.clear()

    def _has_ended(self, run: Run, played: "Future[None]", deadline: float) -> bool:
        if played.done():
            played.result()
            state = state_of(run.live)
            if state == run.expected:
                return True
            if time.monotonic() > deadline:
                log = self._current.tail()
                raise AssertionError(f"{run} comes to another end: {differences(run.expected, state)}\n{log}")
        return False


def is_leading(reconciler: Reconciler) -> bool:
    """Return whether the process says that it leads."""
    if reconciler.process is None or reconciler.process.returncode is not None:
        return False
    try:
        _, page = reconciler.process.get("/metrics")
    except (OSError, http.client.HTTPException):
        return False  # it has just been started, or has just died
    return "bowline_leader 1.0" in page


def differences(expected: State, found: State) -> str:
    """Return what differs, kind by kind."""
    return "; ".join(
        f"{kind}: {expected[kind]} became {found[kind]}" for kind in expected if expected[kind] != found[kind]
    )
