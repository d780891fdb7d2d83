"""The other pure parts of the reconciler, each explored exhaustively up to a bound.

Outcomes and what their status says after a restart; streaks of transient failures; series of waits; the order of a
pod's requests; what is newer than a cache; writes in flight.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api.bindrequest import AllocationKind, BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey, ResourceVersion
from bowline.api.node_view import NodeView
from bowline.framework.config import BackoffSettings, Binding, Settings
from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason, Suggestion
from bowline_reconciler.binding.overlay import CacheOverlay
from bowline_reconciler.binding.state import IdentifiedRequest, RequestStates, WaitState
from bowline_reconciler.decide.actions import Attempt, Complete, Fail, OutcomeAction, RequeueAfter, RetryAt, Wait
from bowline_reconciler.decide.decide import decide, pending_failure
from bowline_reconciler.decide.outcome import backoff, classify_outcome
from bowline_reconciler.decide.report import failed_status, rollback_incomplete_status, waiting_status
from bowline_reconciler.decide.snapshot import (
    Observed,
    Outcome,
    PodView,
    Target,
    Times,
    stored_pause,
    stored_wait,
)
from bowline_reconciler.decide.transient import OWN_AFTER_S, QUIET_FAILURES, REPORT_AFTER_S, Streak, classify, extend

# Each explores a whole space.
pytestmark = pytest.mark.timeout(300)

NOW = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
MAX_BACKOFF = timedelta(seconds=60)
KEY = ObjectKey("ns", "p")
POD = PodView("P", "1", "", deleting=False, has_ended=False, gates=(), scheduler="bowline")  # type: ignore[arg-type]


class Violations:
    """What does not hold, with examples."""

    def __init__(self) -> None:
        self.examples: dict[str, list[str]] = defaultdict(list)

    def hold(self, name: str, condition: bool, *example: Any) -> None:
        """Record an example unless the condition holds."""
        if not condition and len(self.examples[name]) < 4:
            self.examples[name].append(str(example)[:500])


@pytest.fixture
def violations() -> Violations:
    return Violations()


def request(
    status: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None, **spec: Any
) -> BindRequest:
    identity = {"namespace": "ns", "name": "p", "uid": "R", "resourceVersion": "1", "generation": 1}
    body = {"podName": "p", "podUID": "P", "selectedNode": "n", **spec}
    return decode_bind_request(
        {"metadata": {**identity, **(metadata or {})}, "spec": body, "status": dict(status or {})}
    )


def restarted(before: BindRequest, status: Mapping[str, Any]) -> BindRequest:
    """The request as a process reads it that was started later."""
    return decode_bind_request({**before.raw, "status": dict(status)})


def decided(of: BindRequest, retry_in: timedelta) -> Any:
    settings = Settings(scheduler_names=("bowline",))
    seen = Observed(
        of,
        POD,
        NodeView(deleting=False),
        provided=frozenset(AllocationKind),
        effects=frozenset({"a"}),
        times=Times(retry_in=retry_in),
        live=frozenset(Target),
    )
    return decide(seen, settings)


# --- outcomes ---


def _outcomes() -> Iterator[tuple[BindRequest, Status, Binding, float]]:
    durations = (None, timedelta(seconds=1), timedelta(hours=3))
    for code, reason, suggestion, retry_after, plugin in itertools.product(
        Code, (None, *Reason), (None, *Suggestion), durations, ("", "volume_binding")
    ):
        # A reason is of a failure, a pause of a retry; what goes on has neither.
        is_retried = code is Code.RETRY
        if (reason is not None and code is not Code.FATAL) or (retry_after is not None and not is_retried):
            continue
        # Only a plugin has a reason of its own, which is reported as Rejected.
        words = ("", "NoSeat") if reason is Reason.REJECTED and plugin else ("",)
        for word, own, failures, default, jitter in itertools.product(
            words, (None, 0, 2), (0, 1, 2, 7), (0, 3) if is_retried else (3,), (0.0, 0.99) if is_retried else (0.0,)
        ):
            status = Status(code, ("why",), plugin, reason, retry_after, (), None, suggestion, word)
            limits = Binding(
                backoff_limit=default, backoff=BackoffSettings(base=timedelta(seconds=1), max=MAX_BACKOFF)
            )
            spec: dict[str, Any] = {} if own is None else {"backoffLimit": own}
            yield request({"failedAttempts": failures}, **spec), status, limits, jitter


def _check_retry(
    v: Violations, before: BindRequest, status: Status, limits: Binding, jitter: float, result: RetryAt
) -> None:
    label = (before.status, before.spec, status)
    stored_request, requested_pause = restarted(before, result.report.status), status.retry_after or timedelta()
    own = before.spec.backoff_limit if before.spec is not None else None
    v.hold("it counts one attempt", stored_request.failed_attempts == before.failed_attempts + 1, label)
    limit = own if own is not None else limits.backoff_limit
    v.hold("it is within the limit", before.failed_attempts + 1 <= limit, label)
    due = max(requested_pause, backoff(before.failed_attempts + 1, limits, jitter))
    v.hold("it is not sooner than asked, or backed off", result.pause >= due, label)
    v.hold("it is not later than asked, or the maximum", result.pause <= max(MAX_BACKOFF, requested_pause), label)
    remaining_pause = stored_pause(stored_request, NOW, MAX_BACKOFF)
    v.hold(
        "a restart pauses as long, up to an hour",
        remaining_pause >= min(result.pause, timedelta(hours=1)),
        label,
        remaining_pause,
    )
    v.hold(
        "a restart does not attempt before",
        not remaining_pause or isinstance(decided(stored_request, remaining_pause), RequeueAfter),
        label,
    )
    v.hold("a restart attempts after", isinstance(decided(stored_request, timedelta()), Attempt), label)


def _check_failure(v: Violations, before: BindRequest, status: Status, result: Fail) -> None:
    label = (before.status, before.spec, status)
    own = before.spec.backoff_limit if before.spec is not None else None
    final = failed_status(before, result, True, "", NOW)
    v.hold("attempts do not decrease", final["failedAttempts"] >= before.failed_attempts, label)
    v.hold("other schedulers read it as final", own is None or final["failedAttempts"] >= own, label)
    pending = restarted(before, rollback_incomplete_status(before, result, Status.retry("later"), NOW))
    announced_failure = pending_failure(pending)
    is_same = announced_failure is not None and (
        announced_failure.reason,
        announced_failure.suggestion,
        announced_failure.plugin,
        announced_failure.word,
    ) == (result.reason, result.suggestion, result.plugin, result.word)
    v.hold("the next process ends with the failure that is announced", is_same, label, announced_failure, result)
    count = failed_status(pending, announced_failure, True, "", NOW)["failedAttempts"] if announced_failure else None
    v.hold("the next process reports as many attempts", count == final["failedAttempts"], label, count)


def test_every_outcome_and_what_a_restarted_process_does_with_its_status(violations: Violations) -> None:
    cases = 0
    for before, status, limits, jitter in _outcomes():
        cases += 1
        result: OutcomeAction = classify_outcome(before, Outcome(status, NOW), limits, jitter, Times(), NOW)
        goes_on = status.code in (Code.WAIT, Code.TRANSIENT, Code.CANCELLED)
        violations.hold("what goes on does not end", not goes_on or not isinstance(result, Fail | Complete), status)
        violations.hold("OK alone completes", isinstance(result, Complete) is (status.code is Code.OK), status)
        if isinstance(result, RetryAt):
            _check_retry(violations, before, status, limits, jitter, result)
        if isinstance(result, Fail):
            _check_failure(violations, before, status, result)
    assert violations.examples == {}
    assert cases > 3_000


# --- streaks of transient failures ---

_GAPS = (0.0, 0.3, 4.0, OWN_AFTER_S, 30.0, REPORT_AFTER_S)
# Of one failure: seconds since the one before, whether others have succeeded meanwhile, whether it is deferred.
Step = tuple[float, bool, bool]


def _check_streak(v: Violations, steps: Sequence[Step]) -> None:
    streak: Streak | None = None
    now, first, was_own = 1000.0, 1000.0, False
    for number, (gap, others_succeed, is_deferred) in enumerate(steps):
        now += gap if number else 0.0
        last_success = now - gap / 2 if others_succeed and gap else -1.0
        streak = extend(streak, now, last_success, is_deferred)
        label = (steps[: number + 1], streak)
        v.hold("it counts", streak.count == number + 1 and streak.first == first, label)
        v.hold("what is its own stays so", streak.is_own or not was_own, label)
        v.hold("it is its own after a minute", streak.is_own or now - first < REPORT_AFTER_S, label)
        is_early = streak.is_own and not was_own and now - first < REPORT_AFTER_S
        has_evidence = number >= QUIET_FAILURES and others_succeed and not is_deferred and now - first >= OWN_AFTER_S
        v.hold("earlier only with evidence", not is_early or has_evidence, label)
        classified = classify(Status(Code.TRANSIENT, ("x",)), streak)
        v.hold("what is its own counts as an attempt", (classified.code is Code.RETRY) is streak.is_own, label)
        was_own = streak.is_own


def test_every_series_of_three_transient_failures(violations: Violations) -> None:
    every_step: list[Step] = list(itertools.product(_GAPS, (False, True), (False, True)))
    for length in (1, 2, 3):
        for steps in itertools.product(every_step, repeat=length):
            _check_streak(violations, steps)
    assert violations.examples == {}


# --- waits ---


def test_a_request_that_waits_for_one_cause_after_another_fails_within_the_longest_limit(
    violations: Violations,
) -> None:
    """Causes that take turns end as one that stays, whatever the order in which plugins answer."""
    step = 20.0
    limits = {"plugin a": timedelta(seconds=120), "plugin b": timedelta(seconds=120), "gang": timedelta(seconds=60)}
    groups = [(cause,) for cause in limits] + list(itertools.permutations(limits, 2))
    for length in (1, 2, 3):
        for cycle in itertools.product(groups, repeat=length):
            state, now, elapsed = WaitState(), 5000.0, 0.0
            for turn in range(100):
                causes = cycle[turn % len(cycle)]
                times = Times(
                    wait_time=timedelta(seconds=now - state.began) if state.first_waits else timedelta(),
                    waited={cause: timedelta(seconds=now - at) for cause, at in state.first_waits.items()},
                    longest=state.longest,
                )
                if min(times.wait_left(limits[cause], cause) for cause in causes) <= timedelta():
                    break
                state.start(",".join(causes), {cause: limits[cause] for cause in causes}, now, None)
                now, elapsed = now + step, elapsed + step
            violations.hold("it ends", elapsed <= 120 + step, cycle, elapsed)
    assert violations.examples == {}


@pytest.mark.parametrize("waited_s", range(0, 400, 7))
def test_a_stored_wait_is_restored(waited_s: int) -> None:
    wait = Wait((), "why", timedelta(seconds=120), "plugin a")
    stored_request = request(waiting_status(request(), wait, NOW - timedelta(seconds=waited_s), NOW))
    wait_time = stored_wait(stored_request, NOW)
    # Stored times have whole seconds.
    assert wait_time is not None
    assert abs(wait_time - timedelta(seconds=waited_s)) < timedelta(seconds=1)


# --- what is newer than the cache ---


def test_nothing_older_than_an_own_write_is_decided_on_whatever_the_watch_delivers(violations: Violations) -> None:
    steps = ("own write", "foreign write", "deliver", "deliver all", "read live", "look")
    versions = {number: request(metadata={"resourceVersion": str(number)}) for number in range(20)}
    for series in itertools.product(steps, repeat=6):
        overlay, stored_version, cached_version, newest = CacheOverlay(), 0, 0, 0
        for number, step in enumerate(series):
            latest = overlay.latest(versions[cached_version])
            assert latest is not None
            base = int(latest.resource_version)
            if step == "own write" and base == stored_version:
                stored_version += 1
                overlay.replace(versions[base], versions[stored_version])
                newest = stored_version
            elif step == "own write":
                overlay.invalidate()  # a Conflict
            elif step == "foreign write":
                stored_version += 1
            elif step == "deliver":
                cached_version = min(stored_version, cached_version + 1)
            elif step == "deliver all":
                cached_version = stored_version
            elif step == "read live":
                overlay.observe(versions[cached_version])
                overlay.confirm()
                overlay.replace(versions[cached_version], versions[stored_version])
                newest = stored_version
            else:
                overlay.observe(versions[cached_version])
                latest = overlay.latest(versions[cached_version])
                assert latest is not None
                is_current = int(latest.resource_version) >= newest or overlay.needs_live_read
                violations.hold("it is current, or read live next", is_current, series[: number + 1])
    assert violations.examples == {}


class Name:
    """A name whose request is made again twice: the API server, a watch, and what the process does with both."""

    history = tuple(
        request(metadata={"uid": uid, "resourceVersion": str(number)}) if uid else None
        for number, uid in enumerate(["A", "", "B", "", "C", ""])
    )

    def __init__(self) -> None:
        self.states = RequestStates()
        self.stored = self.shown = 0
        self.observed: set[str] = set()
        self.past: set[str] = set()  # ended by this process, or known to be deleted or replaced

    def identify(self) -> tuple[IdentifiedRequest, BindRequest | None]:
        """Which request the key is; and which one an attempt would be for."""
        identity = self.states.identify(KEY, self.history[self.shown])
        self.observed |= {identity.cached.uid} if identity.cached is not None else set()
        is_finished = identity.state is not None and identity.state.is_finished
        return identity, None if is_finished else identity.latest

    def delete(self) -> None:
        self.stored = min(len(self.history) - 1, self.stored + 1)

    def replace(self) -> None:
        self.delete()
        if self.history[self.stored] is None:
            self.delete()

    def deliver(self) -> None:
        if self.shown < self.stored:
            self.shown += 1
            self._leave()

    def list(self) -> None:
        self.shown = self.stored
        self._leave()

    def read(self) -> None:
        identity, _ = self.identify()
        if identity.state is not None and identity.state.is_finished:
            return
        answer = self.history[self.stored]
        if answer is None:
            self.past |= self.observed  # not one that was made and deleted before the read, which has no version
            self.states.end(identity)
            self._leave()
        else:
            self.past |= set("ABC"[: self.stored // 2])
            self.observed.add(answer.uid)
            self.states.observe(answer, identity.cached, is_live=True)

    def finish(self) -> None:
        identity, attempted = self.identify()
        if attempted is not None:
            self.past.add(attempted.uid)
            self.states.observe(attempted, identity.cached, is_live=False).finish(attempted.resource_version)

    def _leave(self) -> None:
        if self.history[self.shown] is None:
            self.states.leave(KEY, ResourceVersion(str(self.shown)))


def test_nothing_known_to_be_past_is_attempted_whatever_the_watch_shows(violations: Violations) -> None:
    steps = (Name.delete, Name.replace, Name.deliver, Name.list, Name.read, Name.finish)
    for series in itertools.chain(*(itertools.product(steps, repeat=length) for length in range(1, 7))):
        name = Name()
        for step in series:
            step(name)
        _, attempted = name.identify()
        label = [step.__name__ for step in series]
        violations.hold("it is not past", attempted is None or attempted.uid not in name.past, label, name.past)
        if name.history[name.stored] is None:
            name.list()
            name.read()
            violations.hold("nothing is remembered", not len(name.states), label)
    assert violations.examples == {}
