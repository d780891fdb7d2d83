"""``decide``, ``step`` and ``outcome`` in sequence: every attempt and every way to an end, among other clients, lost
replies and crashes.

A request, its pod and its side effects are a small world of values. Each state of it is explored: the effect that
``step`` demands, with each result that it may have, and between two effects any change by somebody else. What the
driver does is repeated here in one line an effect (``_results``); that it does just that, the live tests show.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast

import pytest

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey, ObjectRef, ObjectUID, ResourceVersion
from bowline.api.node_view import NodeView
from bowline.framework.config import Binding, Settings
from bowline.framework.interface.status import Answers, Cancelled, Status, Transient
from bowline.framework.reason import Reason
from bowline_reconciler.decide.actions import (
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    Outcome,
    Report,
    RequeueAfter,
    RetryAt,
    Rollback,
    Wait,
)
from bowline_reconciler.decide.decide import ReadLive, decide
from bowline_reconciler.decide.outcome import classify_outcome
from bowline_reconciler.decide.report import failure_report, rollback_incomplete_status
from bowline_reconciler.decide.snapshot import Absent, PodView, Snapshot, Target, Times
from bowline_reconciler.decide.step import (
    Abandon,
    AtEnd,
    AttemptEffect,
    AttemptFacts,
    Blame,
    Conclude,
    Decided,
    EndEffect,
    Facts,
    InAttempt,
    Last,
    ReportEnd,
    Stage,
    Undo,
    attempt_step,
    end_step,
)

# The whole space is explored at once.
pytestmark = pytest.mark.timeout(300)

SETTINGS = Settings(scheduler_names=("example-scheduler",))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FATAL = Fail(Status.fatal("no such device"))
GONE = Fail(Status.fatal("no such pod", Reason.POD_GONE))
PLUGINS = frozenset({"devices"})
RETRY = RetryAt(timedelta(), cast(Report, None), Outcome(Status.retry("no"), NOW))
GANG = ObjectRef("v1", "PodGroup", ObjectKey("ns", "gang"))
WITHOUT_CALL = Last | RequeueAfter | Forget | Complete | Conclude | Blame | Transient | Cancelled
# More effects than any end takes once nothing else happens.
MANY = 40


@dataclass(frozen=True, slots=True)
class World:
    """What is stored, what is left outside of it, and how often something else may still happen."""

    phase: str = "Pending"  # empty: the request is gone
    deleting: bool = False
    finalizer: bool = False
    is_incomplete: bool = False  # the status announces a failure that follows the rollback
    pod: str = "free"  # free, none, here, elsewhere
    effects: bool = False
    in_flight: str = ""  # a write that may still take effect: "", binding, effect
    has_run: bool = False  # the pod has been on the node: what it needed is not undone
    has_landed: bool = False  # a late Binding has bound it since it was read
    is_held: bool = False
    in_gang: bool = False
    has_stale_write: bool = False  # of the status, by a former leader: it fails once the request has another version
    changes: int = 1
    failures: int = 1
    crashes: int = 1

    @property
    def leaks(self) -> bool:
        return self.effects and self.pod != "here" and not self.has_run


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process remembers of the request. Losing it is safe."""

    has_side_effects: bool = False
    has_late_writes: bool = False
    is_inherited: bool = False
    ending: Fail | None = None
    has_attempted: bool = False
    has_rolled_back: bool = False
    uncounted: bool = False  # an attempt has failed, and that is not stored yet

    @property
    def may_have_late_writes(self) -> bool:
        return self.has_late_writes or self.is_inherited

    def quiet_in(self, world: World) -> timedelta:
        return timedelta(seconds=9 if self.may_have_late_writes and world.in_flight else 0)


@dataclass(frozen=True, slots=True)
class Work:
    """A reconcile in progress: what was read, what was decided."""

    action: Decided
    request: World  # as stored when it was read or written last
    pod: str = "unread"
    is_pod_live: bool = False
    quiet_in: timedelta = timedelta()  # when the pod was read
    learnt: frozenset[tuple[str, Any]] = frozenset()  # facts of this reconcile
    done: frozenset[str] = frozenset()  # what the attempt has really done: prepared, gathered, sent a Binding


@dataclass(frozen=True, slots=True)
class State:
    world: World = field(default_factory=World)
    memory: Memory = field(default_factory=Memory)
    work: Work | None = None  # None: no reconcile is in progress

    @property
    def facts(self) -> Facts | AttemptFacts:
        work, memory = self.work, self.memory
        assert work is not None
        request = _request_of(work.request)
        if isinstance(work.action, Attempt):
            uncounted = Status.retry("not stored") if memory.uncounted else None
            is_inherited = memory.is_inherited and not memory.has_side_effects
            is_lost = memory.has_late_writes
            learnt = {"has_lost_reply": is_lost, **dict(work.learnt)}
            return AttemptFacts(request, work.action.effects, uncounted, is_inherited, **learnt)
        return Facts(
            request,
            work.pod == "here",
            work.is_pod_live,
            memory.has_side_effects,
            memory.may_have_late_writes,
            work.quiet_in,
            **dict(work.learnt),
        )

    def with_work(self, **changes: Any) -> "State":
        assert self.work is not None
        return replace(self, work=replace(self.work, **changes))

    def noting(self, **changes: Any) -> "State":
        assert self.work is not None
        return self.with_work(learnt=frozenset((dict(self.work.learnt) | changes).items()))

    def going_on(self, **news: Any) -> Iterator["State"]:
        """Yield the state after an effect of an attempt: caches may show that it is withdrawn, sooner or later."""
        assert self.work is not None
        has_changed = _stored(self.world) != _stored(self.work.request) or self.world.pod in ("none", "elsewhere")
        for is_withdrawn in (False, True) if has_changed else (False,):
            yield self.noting(is_withdrawn=is_withdrawn, **news)

    def resting(self, **changes: Any) -> "State":
        return replace(self, work=None, memory=replace(self.memory, **changes))


def _step(decision: Decided, facts: Facts | AttemptFacts) -> AttemptEffect | EndEffect:
    return attempt_step(facts) if isinstance(facts, AttemptFacts) else end_step(decision, facts)


def _request_of(world: World) -> BindRequest:
    return _request(world.phase, world.deleting, world.finalizer, world.is_incomplete)


@cache
def _request(phase: str, deleting: bool, finalizer: bool, is_incomplete: bool) -> BindRequest:
    metadata: dict[str, Any] = {"namespace": "ns", "name": "p", "uid": "R", "resourceVersion": "1"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if finalizer:
        metadata["finalizers"] = [names.FINALIZER]
    raw = {"metadata": metadata, "spec": {"podName": "p", "podUID": "P", "selectedNode": "n"}}
    request = decode_bind_request(raw)
    status: dict[str, Any] = {"phase": phase or "Pending"}
    if phase == "Failed":
        status = dict(failure_report(request, FATAL, rolled_back=False, pod=None, now=NOW).status)
    elif is_incomplete:
        status = rollback_incomplete_status(request, FATAL, Status.retry("not yet"), NOW)
    return decode_bind_request({**raw, "status": status})


@cache
def _pod(where: str) -> PodView | Absent:
    if where in ("unread", "none"):
        return Absent.NOT_IN_CACHE if where == "unread" else Absent.NOT_FOUND
    node = {"free": "", "here": "n", "elsewhere": "m"}[where]
    return PodView(ObjectUID("P"), ResourceVersion("1"), node, False, False, (), "example-scheduler")


class Explored:
    """All states that can be reached, and what does not hold in one of them."""

    def __init__(self) -> None:
        self.violations: dict[str, str] = {}
        self.effects: set[type | AtEnd | InAttempt | Last] = set()
        self.actions: set[type] = set()

    def fail_if(self, condition: bool, what: str, state: State) -> None:
        if condition:
            self.violations.setdefault(what, str(state))

    # --- what happens next ---

    def next_states(self, state: State) -> Iterator[State]:
        yield from self.after_effect(state)
        for world in _changed_by_others(state.world):
            is_hidden = state.world.finalizer and not world.finalizer and not state.memory.has_side_effects
            yield replace(state, world=_unrecorded(world) if is_hidden else world)
        if state.world.crashes and state != State():
            # The next leader knows what is stored, and that another process may have written.
            world = replace(state.world, crashes=0)
            world = world if world.finalizer else _unrecorded(world)
            yield State(world, Memory(is_inherited=True))
            has_stale_write = world.phase == "Pending" and world.finalizer
            yield State(replace(world, has_stale_write=has_stale_write), Memory(is_inherited=True))

    def after_effect(self, state: State) -> Iterator[State]:
        """Yield the state after the next effect, once for each result that it may have."""
        if state.work is None:
            yield from self._reconciled(state)
            return
        effect = _step(state.work.action, state.facts)
        self.effects.add(effect if isinstance(effect, AtEnd | InAttempt | Last) else type(effect))
        if state.world.failures and not isinstance(effect, WITHOUT_CALL):
            # The call fails, with or without effect; the reconcile is repeated, or the failure counts.
            failed = replace(state, world=replace(state.world, failures=state.world.failures - 1))
            yield replace(failed, work=None)
            if isinstance(effect, RetryAt):
                yield failed.resting(uncounted=True)
            if isinstance(state.work.action, Attempt):
                yield replace(failed, work=Work(Conclude(Status.retry("no")), state.work.request))
        yield from self._results(effect, state)

    def _reconciled(self, state: State) -> Iterator[State]:
        """Begin a reconcile: decide, with the live reads that it requires."""
        world, memory = state.world, state.memory
        if not world.phase:
            if memory.has_side_effects or (memory.has_attempted and memory.has_late_writes):
                yield replace(state, work=Work(Abandon(), replace(world, phase="Pending", finalizer=False)))
            else:
                self.fail_if(world.leaks, "forgotten with side effects", state)
            return
        request, live = (_request_of(world), frozenset[Target]())
        while True:
            holders = ("devices",) if world.is_held else ()
            facts = Snapshot(
                request,
                _pod(world.pod) if Target.POD in live else _pod("unread"),
                NodeView(deleting=False),
                live=live,
                answers=Answers(demands=frozenset(AllocationKind), effects=PLUGINS, holders=holders),
                was_delayed=memory.has_attempted,
                ending=memory.ending,
            )
            action = decide(facts, SETTINGS)
            if not isinstance(action, ReadLive):
                break
            live |= {action.target}
        self.actions.add(type(action))
        is_live = Target.POD in live
        if isinstance(action, Attempt):
            self.fail_if(memory.ending is not None, "attempted after its end had begun", state)
            yield replace(state, work=Work(action, world))
            return
        pod = world.pod if is_live else "unread"
        yield replace(state, work=Work(action, world, pod, is_live, memory.quiet_in(world)))

    # --- the driver, one line an effect ---

    def _results(self, effect: AttemptEffect | EndEffect, state: State) -> Iterator[State]:  # noqa: C901, PLR0912, PLR0915 - a table
        world, memory, work = state.world, state.memory, state.work
        assert work is not None
        match effect:
            case InAttempt() if effect is not InAttempt.READ_POD:
                yield from self._attempt_results(effect, state)
            case Blame() | Conclude():
                yield from self._attempt_results(effect, state)
            case RetryAt():
                self.fail_if(isinstance(work.action, Complete), "retried although bound", state)
                for written in self._written(state):
                    yield written.resting(uncounted=written.work is None)
            case Transient() | Cancelled():
                yield replace(state, work=None)
            case InAttempt.READ_POD | AtEnd.READ_POD:
                is_bound, end = world.pod == "here", GONE if world.pod in ("none", "elsewhere") else None
                read = replace(state, world=replace(world, has_landed=False))
                read = read.with_work(
                    pod=world.pod, is_pod_live=True, quiet_in=memory.quiet_in(world), done=work.done - {"sent"}
                )
                is_attempt = isinstance(work.action, Attempt)
                yield read.noting(is_pod_live=True, is_bound=is_bound, end=end) if is_attempt else read
            case AtEnd.READ_BOUND_POD:
                yield state.noting(has_read_bound_pod=True).with_work(pod=world.pod)
            case Last.RECONSIDER:
                self.fail_if(work.pod == "here", "reconsidered although bound", state)
                yield replace(state, work=None)
            case RequeueAfter():
                yield replace(state, world=_landed(world)).resting(has_late_writes=False, is_inherited=False)
                yield replace(state, world=replace(world, in_flight="")).resting(
                    has_late_writes=False, is_inherited=False
                )
            case Undo():
                is_seen = work.pod in ("here", "unread") or world.has_landed
                self.fail_if(world.pod == "here" and is_seen, "undone below a running pod", state)
                self.fail_if(bool(world.in_flight), "undone while a write may take effect", state)
                undone = replace(state, world=replace(world, effects=False))
                yield replace(undone, memory=replace(memory, has_side_effects=False, has_rolled_back=True)).noting(
                    has_undone=True
                )
                if world.failures:
                    failed = replace(world, failures=world.failures - 1)
                    if not isinstance(effect.decision, Abandon) and work.request == world:
                        is_incomplete = isinstance(effect.decision, Fail)
                        yield replace(state, world=replace(failed, is_incomplete=is_incomplete), work=None)
                    # A write of the rollback itself has no reply.
                    late = replace(failed, in_flight="effect")
                    late = late if world.finalizer or memory.has_side_effects else _unrecorded(late)
                    awaiting = replace(state, world=late, memory=replace(memory, has_late_writes=True))
                    yield awaiting.with_work(quiet_in=timedelta(seconds=9))
            case AtEnd.RUN_POST_BIND:
                self.fail_if(work.pod != "here", "post_bind of a pod that was not read on its node", state)
                yield state.noting(has_run_post_bind=True, is_held=world.is_held)
            case DropFinalizer():
                self.fail_if(world.leaks, "finalizer dropped above side effects", state)
                is_success = isinstance(work.action, Complete)
                is_early = is_success and "has_run_post_bind" not in dict(work.learnt)
                self.fail_if(is_early, "finalizer dropped before post_bind", state)
                is_silent = isinstance(work.action, Rollback) and "has_reported" not in dict(work.learnt)
                self.fail_if(is_silent, "finalizer dropped before the rollback is reported", state)
                self.fail_if(
                    is_success and world.is_held, "finalizer dropped although the pod holds something", state
                )
                is_late = bool(world.in_flight) and not world.has_run
                self.fail_if(is_late, "finalizer dropped while a write may take effect", state)
                yield from self._written(state, finalizer=False)
            case ReportEnd(Complete()):
                self.fail_if("has_run_post_bind" not in dict(work.learnt), "Succeeded before post_bind", state)
                is_kept = work.request.finalizer and not world.is_held
                self.fail_if(is_kept, "Succeeded before the finalizer is dropped", state)
                yield from self._written(state, phase="Succeeded", has_reported=True)
            case ReportEnd(Fail()):
                self.fail_if(world.leaks, "Failed with side effects", state)
                self.fail_if(work.request.finalizer, "Failed before the finalizer is dropped", state)
                self.fail_if(world.in_flight == "binding", "Failed while a Binding may take effect", state)
                yield from self._written(state, phase="Failed", has_reported=True, is_incomplete=False)
            case ReportEnd(Rollback()):
                self.fail_if(world.leaks, "released with side effects", state)
                yield from self._written(state, has_reported=True)
            case Last.CLOSE if isinstance(work.action, Abandon):
                yield state.resting(has_side_effects=False, has_late_writes=False, has_attempted=False)
            case Last.CLOSE:
                is_kept = world.finalizer and not world.is_held and work.request == world
                self.fail_if(is_kept, "closed with the finalizer", state)
            case Forget():
                if memory.has_side_effects or memory.has_late_writes:
                    yield state.with_work(action=Abandon())
            case Complete():
                yield state.with_work(action=effect)
            case _:
                raise AssertionError(effect)

    def _attempt_results(self, effect: AttemptEffect | EndEffect, state: State) -> Iterator[State]:  # noqa: PLR0915 - a table
        world, memory, work = state.world, state.memory, state.work
        assert work is not None
        is_withdrawn = dict(work.learnt).get("is_withdrawn", False)
        match effect:
            case InAttempt.RECORD:
                for written in self._written(state, finalizer=True):
                    yield from written.going_on(stage=Stage.RECORDED) if written.work is not None else (written,)
            case InAttempt.PREPARE:
                self.fail_if(not work.request.finalizer, "prepared before the finalizer is recorded", state)
                self.fail_if(memory.uncounted, "prepared before the last failure is counted", state)
                self.fail_if(is_withdrawn, "prepared although withdrawn", state)
                self.fail_if(world.has_stale_write, "prepared while a former leader's report may be stored", state)
                memory = replace(memory, has_side_effects=True, has_attempted=True, has_rolled_back=False)
                begun = replace(state, world=replace(world, effects=True), memory=memory)
                stage, gang = Stage.PREPARED, GANG if world.in_gang else None
                prepared = begun.with_work(done=work.done | {"prepared"})
                yield from prepared.going_on(stage=stage, status=Status.ok(), gang=gang)
                for status in (FATAL.status, Status.wait("not yet"), Status.retry("no")):
                    yield from begun.going_on(stage=stage, status=status, gang=gang)
                late = replace(begun, world=replace(world, in_flight="effect"))
                late = replace(late, memory=replace(memory, has_late_writes=True))
                yield from late.going_on(stage=stage, status=Status.retry("no reply"), gang=gang)
            case InAttempt.GATHER:
                yield from state.with_work(done=work.done | {"gathered"}).going_on(
                    stage=Stage.GATHERED, status=Status.ok()
                )
                yield from state.going_on(stage=Stage.GATHERED, status=Status.wait("for the gang"))
            case InAttempt.POST:
                self.fail_if("prepared" not in work.done, "bound before it is prepared", state)
                self.fail_if(world.in_gang and "gathered" not in work.done, "bound without its gang", state)
                self.fail_if(is_withdrawn, "bound although withdrawn", state)
                yield from _posted(state)
            case Blame():
                self.fail_if(work.pod in ("here", "unread"), "blamed without a look at the pod", state)
                late = replace(state, memory=replace(memory, has_late_writes=True))
                yield late.with_work(quiet_in=late.memory.quiet_in(world)).noting(status=Status.wait("a defect"))
            case Conclude(status):
                self.fail_if("sent" in work.done, "concluded without a look at the pod", state)
                if status is None:
                    yield replace(state, work=None)
                    return
                for limit in (5, 0):
                    outcome, limits = Outcome(status, NOW), Binding(backoff_limit=limit)
                    action = classify_outcome(state.facts.request, outcome, limits, 0.5, Times(), NOW)
                    if isinstance(action, Wait):
                        yield replace(state, work=None)
                        return
                    action = RETRY if isinstance(action, RetryAt) else action
                    ending = action if isinstance(action, Fail) else memory.ending
                    is_live = work.is_pod_live
                    pod = work.pod if is_live else "unread"
                    following = Work(action, work.request, pod, is_live, work.quiet_in)
                    yield State(world, replace(memory, ending=ending), following)

    def _written(self, state: State, *, has_reported: bool = False, **changes: Any) -> Iterator[State]:
        """Write the request, guarded by its version; or learn that it is gone, or that another client has written."""
        world, work = state.world, state.work
        assert work is not None
        if not world.phase:
            yield state.noting(is_gone=True) if changes == {"finalizer": False} else replace(state, work=None)
            return
        if _stored(world) != _stored(work.request):
            yield replace(state, work=None)
            return
        written = replace(world, has_stale_write=False, **changes)
        if written.deleting and not written.finalizer:
            written = replace(written, phase="")
        known = replace(written, phase=written.phase or work.request.phase)
        written_state = replace(state, world=written).with_work(request=known)
        yield written_state.noting(has_reported=True) if has_reported else written_state


def _stored(world: World) -> tuple[str, bool, bool, bool]:
    return world.phase, world.deleting, world.finalizer, world.is_incomplete


def _landed(world: World) -> World:
    """Return the world after its late write has taken effect."""
    if world.in_flight == "binding" and world.pod == "free":
        return replace(world, pod="here", in_flight="", has_run=True, has_landed=True)
    effects = world.effects or world.in_flight == "effect"
    return replace(world, effects=effects, in_flight="")


def _unrecorded(world: World) -> World:
    """Return the world without what nobody can know: no process remembers it, and a client removed the finalizer."""
    return replace(world, effects=False, in_flight="" if world.in_flight == "effect" else world.in_flight)


def _changed_by_others(world: World) -> Iterator[World]:
    if world.in_flight:
        yield _landed(world)
    if world.has_stale_write and world.phase == "Pending":
        yield replace(world, has_stale_write=False, is_incomplete=True)
    if not world.changes:
        return
    changed = replace(world, changes=world.changes - 1)
    if world.phase and not world.deleting:
        yield replace(changed, deleting=True) if world.finalizer else replace(changed, phase="")
    if world.phase == "Pending":
        yield replace(changed, phase="Failed")
    if world.finalizer:
        yield replace(changed, finalizer=False, phase="" if world.deleting else world.phase)
        yield replace(changed, finalizer=False, phase="")
    if world.pod == "free":
        yield from (
            replace(changed, pod="none"),
            replace(changed, pod="elsewhere"),
            replace(changed, pod="here", has_run=True),
        )
    if world.pod == "here":
        yield replace(changed, pod="none")


def _posted(state: State) -> Iterator[State]:
    """Yield the results of bind: acknowledged, rejected, without a reply, or not by a Binding of this process."""
    world, work = state.world, state.work
    assert work is not None
    stage = Stage.POSTED
    if world.pod == "free" and world.phase:
        bound = replace(state, world=replace(world, pod="here", has_run=True))
        yield from bound.going_on(stage=stage, status=Status.ok(), is_acknowledged=True)
        yield bound.with_work(done=work.done | {"sent"}).noting(stage=stage, status=Status.ok())
        unknown = replace(state, memory=replace(state.memory, has_late_writes=True))
        for after in (bound.world, replace(world, in_flight="binding")):
            lost = replace(unknown, world=after).with_work(done=work.done | {"sent"})
            yield lost.noting(stage=stage, status=Status.retry("no reply"), has_lost_reply=True)
    else:
        yield from state.going_on(stage=stage, status=Status.retry("409"), is_rejected=True)
    yield from state.going_on(stage=stage, status=FATAL.status, is_rejected=True)
    yield state.with_work(done=work.done | {"sent"}).noting(stage=stage, status=Status.ok())


def explore(start: State) -> tuple[Explored, set[State]]:
    explored, states, queue = Explored(), {start}, deque([start])
    while queue:
        state = queue.popleft()
        for following in explored.next_states(state):
            if following not in states:
                states.add(following)
                queue.append(following)
    return explored, states


def test_every_way_to_an_end_is_safe_and_has_an_end() -> None:
    reached: set[type | AtEnd | InAttempt | Last] = set()
    for world in (World(), World(is_held=True, in_gang=True, failures=0)):
        explored, states = explore(State(world))
        assert explored.violations == {}
        assert len(states) > 15_000
        reached |= explored.effects
        quiet, ending = Explored(), set[State]()
        for state in states:
            path: list[State] = []
            following: State | None = replace(state, world=replace(state.world, changes=0, failures=0, crashes=0))
            while following is not None and following not in ending:
                assert len(path) < MANY, state
                path.append(following)
                following = next(quiet.after_effect(following), None)
            ending.update(path)
    own = {Blame, Conclude, DropFinalizer, Undo, ReportEnd}
    assert reached >= {*own, *AtEnd, *InAttempt, RequeueAfter, RetryAt, Last.CLOSE, Last.RECONSIDER}


def test_nothing_is_undone_of_a_request_that_has_not_the_name_of_its_pod() -> None:
    metadata = {"namespace": "ns", "name": "other", "uid": "R", "finalizers": [names.FINALIZER]}
    request = decode_bind_request(
        {"metadata": metadata, "spec": {"podName": "p", "podUID": "P", "selectedNode": "n"}}
    )
    assert end_step(FATAL, Facts(request, is_pod_live=True)) == DropFinalizer()
