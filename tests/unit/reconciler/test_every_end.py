"""``decide`` and ``step`` in sequence: every way to an end, among other clients, lost replies and crashes.

A request, its pod and its side effects are a small world of values. Each state of it is explored: the effect that
``step`` demands, with each result that it may have, and between two effects any change by somebody else. What the
driver does is repeated here in one line an effect (``_results``); that it does just that, the live tests show.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, BindRequest, decode_bind_request
from bowline.api.meta import ObjectUID, ResourceVersion
from bowline.api.node_view import NodeView
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Status
from bowline_reconciler.decide.actions import Action, Attempt, Complete, DropFinalizer, Fail, Forget, RequeueAfter
from bowline_reconciler.decide.decide import ReadLive, decide
from bowline_reconciler.decide.report import failed_status, rollback_incomplete_status
from bowline_reconciler.decide.snapshot import Absent, Observed, PodView, Target
from bowline_reconciler.decide.step import (
    Abandon,
    Advise,
    Close,
    Effect,
    Facts,
    ReadBoundPod,
    ReadPod,
    Reconsider,
    ReportFailed,
    ReportRolledBack,
    ReportSucceeded,
    RunPostBind,
    Settle,
    Undo,
    step,
)

# The whole space is explored at once.
pytestmark = pytest.mark.timeout(300)

SETTINGS = Settings(scheduler_names=("example-scheduler",))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FATAL = Fail(Status.fatal("no such device"))
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
    is_held: bool = False
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


@dataclass(frozen=True, slots=True)
class Work:
    """A reconcile in progress: what was read, what was decided."""

    action: Action | Abandon
    request: World  # as stored when it was read or written last
    pod: str = "unread"
    is_pod_live: bool = False
    learnt: frozenset[tuple[str, Any]] = frozenset()  # facts of this reconcile


@dataclass(frozen=True, slots=True)
class State:
    world: World = field(default_factory=World)
    memory: Memory = field(default_factory=Memory)
    work: Work | None = None  # None: no reconcile is in progress

    @property
    def facts(self) -> Facts:
        work, memory = self.work, self.memory
        assert work is not None
        request = work.request
        return Facts(
            _request(request.phase, request.deleting, request.finalizer, request.is_incomplete),
            work.pod == "here",
            work.is_pod_live,
            memory.has_side_effects,
            memory.has_late_writes,
            memory.is_inherited,
            **dict(work.learnt),
        )

    def with_work(self, **changes: Any) -> "State":
        assert self.work is not None
        return replace(self, work=replace(self.work, **changes))

    def noting(self, **changes: Any) -> "State":
        assert self.work is not None
        return self.with_work(learnt=frozenset((dict(self.work.learnt) | changes).items()))

    def resting(self, **changes: Any) -> "State":
        return replace(self, work=None, memory=replace(self.memory, **changes))


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
        status = failed_status(request, FATAL, rolled_back=False, pod_node="", now=NOW)
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
        self.effects: set[type] = set()
        self.actions: set[type] = set()

    def fail_if(self, condition: bool, what: str, state: State) -> None:
        if condition:
            self.violations.setdefault(what, str(state))

    # --- what happens next ---

    def next_states(self, state: State) -> Iterator[State]:
        yield from self.after_effect(state)
        for world in _changed_by_others(state.world):
            yield replace(state, world=world)
        if state.world.crashes and state != State():
            # The next leader knows what is stored, and that another process may have written.
            yield State(replace(state.world, crashes=0), Memory(is_inherited=True))

    def after_effect(self, state: State) -> Iterator[State]:
        """Yield the state after the next effect, once for each result that it may have."""
        if state.work is None:
            yield from self._reconciled(state)
            return
        effect = step(state.work.action, state.facts)
        self.effects.add(type(effect))
        if state.world.failures and not isinstance(effect, Close | RequeueAfter | Forget | Complete | Attempt):
            # The call fails, with or without effect; the reconcile is repeated.
            failed = replace(state.world, failures=state.world.failures - 1)
            yield replace(state, world=failed, work=None)
        yield from self._results(effect, state)

    def _reconciled(self, state: State) -> Iterator[State]:
        """Begin a reconcile: decide, with the live reads that it requires."""
        world, memory = state.world, state.memory
        if not world.phase:
            if memory.has_side_effects or (memory.has_attempted and memory.has_late_writes):
                yield replace(state, work=Work(Abandon(), replace(world, phase="Pending", finalizer=False)))
            else:
                self.fail_if(world.leaks and not memory.is_inherited, "forgotten with side effects", state)
            return
        request, live = (
            _request(world.phase, world.deleting, world.finalizer, world.is_incomplete),
            frozenset[Target](),
        )
        while True:
            facts = Observed(
                request,
                _pod(world.pod) if Target.POD in live else _pod("unread"),
                NodeView(deleting=False),
                provided=frozenset(AllocationKind),
                live=live,
                is_held=world.is_held,
                was_delayed=memory.has_attempted,
            )
            action = decide(facts, SETTINGS, memory.ending)
            if not isinstance(action, ReadLive):
                break
            live |= {action.target}
        self.actions.add(type(action))
        is_live = Target.POD in live
        yield replace(state, work=Work(action, world, world.pod if is_live else "unread", is_live))

    # --- the driver, one line an effect ---

    def _results(self, effect: Effect, state: State) -> Iterator[State]:  # noqa: C901, PLR0912, PLR0915 - a table
        world, memory, work = state.world, state.memory, state.work
        assert work is not None
        match effect:
            case Attempt():
                self.fail_if(memory.ending is not None, "attempted after its end had begun", state)
                yield from _attempted(state)
            case ReadPod():
                yield state.with_work(pod=world.pod, is_pod_live=True)
            case ReadBoundPod():
                yield state.noting(has_read_bound_pod=True).with_work(pod=world.pod)
            case Reconsider():
                self.fail_if(work.pod == "here", "reconsidered although bound", state)
                yield replace(state, work=None)
            case Settle():
                # A Binding may take effect until it is determined, or is known to be lost.
                landed = _landed(world)
                yield replace(state, world=landed).noting(quiet_in=timedelta(seconds=9 if world.in_flight else 0))
            case RequeueAfter():
                yield replace(state, world=_landed(world)).resting(has_late_writes=False, is_inherited=False)
                yield replace(state, world=replace(world, in_flight="")).resting(
                    has_late_writes=False, is_inherited=False
                )
            case Advise():
                advised = replace(effect.fail, is_advised=True)
                yield replace(state, memory=replace(memory, ending=advised)).with_work(action=advised)
            case Undo():
                self.fail_if(
                    world.pod == "here" and work.pod in ("here", "unread"), "undone below a running pod", state
                )
                self.fail_if(bool(world.in_flight), "undone while a write may take effect", state)
                undone = replace(state, world=replace(world, effects=False))
                yield replace(undone, memory=replace(memory, has_side_effects=False, has_rolled_back=True)).noting(
                    has_undone=True
                )
                if world.failures:
                    failed = replace(world, failures=world.failures - 1)
                    if not effect.is_orphan and work.request == world:
                        yield replace(state, world=replace(failed, is_incomplete=effect.fail is not None), work=None)
                    # A write of the rollback itself has no reply.
                    late = replace(failed, in_flight="effect")
                    yield replace(state, world=late, memory=replace(memory, has_late_writes=True)).noting(
                        quiet_in=timedelta(seconds=9)
                    )
            case RunPostBind():
                self.fail_if(work.pod != "here", "post_bind of a pod that was not read on its node", state)
                yield state.noting(has_run_post_bind=True, is_held=world.is_held)
            case DropFinalizer():
                self.fail_if(world.leaks and not memory.is_inherited, "finalizer dropped above side effects", state)
                is_success = isinstance(work.action, Complete)
                is_early = is_success and not state.facts.has_run_post_bind
                self.fail_if(is_early, "finalizer dropped before post_bind", state)
                self.fail_if(
                    is_success and world.is_held, "finalizer dropped although the pod holds something", state
                )
                is_late = bool(world.in_flight) and not world.has_run
                self.fail_if(is_late, "finalizer dropped while a write may take effect", state)
                yield from self._written(state, finalizer=False)
            case ReportSucceeded():
                self.fail_if(not state.facts.has_run_post_bind, "Succeeded before post_bind", state)
                is_kept = work.request.finalizer and not world.is_held
                self.fail_if(is_kept, "Succeeded before the finalizer is dropped", state)
                yield from self._written(state, phase="Succeeded", has_reported=True)
            case ReportFailed():
                self.fail_if(world.leaks, "Failed with side effects", state)
                self.fail_if(work.request.finalizer, "Failed before the finalizer is dropped", state)
                self.fail_if(world.in_flight == "binding", "Failed while a Binding may take effect", state)
                yield from self._written(state, phase="Failed", has_reported=True, is_incomplete=False)
            case ReportRolledBack():
                self.fail_if(world.leaks and not memory.is_inherited, "released with side effects", state)
                yield from self._written(state, has_reported=True)
            case Close() if isinstance(work.action, Abandon):
                yield state.resting(has_side_effects=False, has_late_writes=False, has_attempted=False)
            case Close():
                is_kept = world.finalizer and not world.is_held and work.request == world
                self.fail_if(is_kept, "closed with the finalizer", state)
            case Forget():
                if memory.has_side_effects or memory.has_late_writes:
                    yield state.with_work(action=Abandon())
            case Complete() | Fail():
                yield state.with_work(action=effect)
            case _:
                raise AssertionError(effect)

    def _written(self, state: State, *, has_reported: bool = False, **changes: Any) -> Iterator[State]:
        """Write the request, guarded by its version; or learn that it is gone, or that another client has written."""
        world, work = state.world, state.work
        assert work is not None
        if not world.phase:
            yield state.noting(is_gone=True) if not has_reported else replace(state, work=None)
            return
        if _stored(world) != _stored(work.request):
            yield replace(state, work=None)
            return
        written = replace(world, **changes)
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
        return replace(world, pod="here", in_flight="", has_run=True)
    effects = world.effects or world.in_flight == "effect"
    return replace(world, effects=effects, in_flight="")


def _changed_by_others(world: World) -> Iterator[World]:
    if world.in_flight:
        yield _landed(world)
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


def _attempted(state: State) -> Iterator[State]:
    """Yield the results of an attempt: the finalizer is recorded first, then side effects may exist."""
    world, work = state.world, state.work
    assert work is not None
    if not world.phase or world.deleting or _stored(world) != _stored(work.request):
        yield replace(state, work=None)
        return
    begun = replace(world, finalizer=True, effects=True)
    memory = replace(state.memory, has_side_effects=True, has_attempted=True, has_rolled_back=False)
    ended = State(begun, memory, Work(FATAL, begun))
    yield ended.with_work(action=FATAL)
    yield replace(ended, memory=replace(memory, ending=FATAL)).with_work(action=FATAL)
    yield ended.resting()  # it waits, or is retried
    yield replace(ended, world=replace(begun, in_flight="effect")).resting(has_late_writes=True)
    if world.pod == "free":
        bound = replace(begun, pod="here", has_run=True)
        yield replace(ended, world=bound).with_work(action=Complete(), request=bound)
        yield replace(ended, world=bound).resting(has_late_writes=True)
        late = replace(begun, in_flight="binding")
        yield replace(ended, world=late).resting(has_late_writes=True)
        yield replace(ended, world=late, memory=replace(memory, has_late_writes=True, ending=FATAL)).with_work(
            action=FATAL, request=late
        )


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
    reached: set[type] = set()
    for is_held in (False, True):
        explored, states = explore(State(World(is_held=is_held)))
        assert explored.violations == {}
        assert len(states) > 5_000
        reached |= explored.effects
        quiet = Explored()
        for state in states:
            count = 0
            following: State | None = replace(state, world=replace(state.world, changes=0, failures=0, crashes=0))
            while following is not None and count < MANY:
                following, count = next(quiet.after_effect(following), None), count + 1
            assert count < MANY, state
    assert reached >= {
        Advise,
        Attempt,
        Close,
        DropFinalizer,
        ReadBoundPod,
        ReadPod,
        ReportFailed,
        ReportRolledBack,
        ReportSucceeded,
        RequeueAfter,
        RunPostBind,
        Settle,
        Undo,
    }


def test_nothing_is_undone_of_a_request_that_has_not_the_name_of_its_pod() -> None:
    metadata = {"namespace": "ns", "name": "other", "uid": "R", "finalizers": [names.FINALIZER]}
    request = decode_bind_request(
        {"metadata": metadata, "spec": {"podName": "p", "podUID": "P", "selectedNode": "n"}}
    )
    advised = replace(FATAL, is_advised=True)
    assert step(advised, Facts(request, is_pod_live=True)) == DropFinalizer()
