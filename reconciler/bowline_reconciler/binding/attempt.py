"""Runs one attempt for a request: pre_bind, the gang, bind, verify. ``reconciler`` acts on its outcome.

Without failures, no API call precedes the Binding except the finalizer's and those of plugins. The caches are checked
once more, with no await between that check and the Binding; the Binding's own preconditions cover the rest.
Decision 104.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectUID
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.runner import WITHDRAWN, Runner
from bowline.framework.plugin_status import Code, Status
from bowline.kube.late_writes import noting
from bowline.runtime.clock import Clock
from bowline_reconciler.binding.gangs import Gangs
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.state import RequestState, Running
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.decide.snapshot import Outcome, Snapshot, Target, is_bound_as_asked
from bowline_reconciler.informers import Informers


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt's outcome; its context, which post_bind receives as well; and what is known after it."""

    outcome: Outcome
    context: BindContext
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class AttemptRunner:
    """Runs attempts. Methods raise the client's errors; repeating the reconcile after an error or a crash is safe."""

    reads: Reads
    informers: Informers
    runner: Runner
    writer: Writer
    clock: Clock
    gangs: Gangs | None = None

    async def run(self, snapshot: Snapshot, state: RequestState, effects: Collection[str]) -> EndedAttempt:
        """Run an attempt.

        ``effects``: the plugins that may leave side effects, so the finalizer records them first.
        """
        request = snapshot.request
        state.attempt.confirm()
        state.attempt.start()
        started_at = self.clock.now()
        if effects:
            request = await self._hold(request, state, frozenset(effects))
            state.rollback.expect(request)
            snapshot = replace(snapshot, lookup=request)
        ctx = self.reads.context(snapshot)
        status, snapshot = await self._bind(request, ctx, snapshot, state)
        return EndedAttempt(Outcome(status, started_at), ctx, snapshot)

    def ended_attempt(self, snapshot: Snapshot, outcome: Outcome) -> EndedAttempt:
        """Return an attempt that has ended with that outcome, of which nothing else is known."""
        return EndedAttempt(outcome, self.reads.context(snapshot), snapshot)

    async def interrupted_attempt(self, request: BindRequest, why: str) -> EndedAttempt:
        """Return the attempt that a failed call outside of the plugins has ended."""
        snapshot = await self.reads.with_pod(self.reads.from_cache(request.key, request))
        return self.ended_attempt(snapshot, Outcome(Status.retry(why), self.clock.now()))

    async def set_owner(self, request: BindRequest, state: RequestState, pod_uid: ObjectUID) -> None:
        """Begin an attempt by tying the request to its present pod; another reconcile goes on with it."""
        state.attempt.start()
        await self.writer.set_owner(request, pod_uid)

    async def _hold(self, request: BindRequest, state: RequestState, effects: frozenset[str]) -> BindRequest:
        """Return the request with finalizer and plugins recorded and, after a change of leader, fenced.

        A finalizer without a record, as an older release leaves it, means every plugin. Decision 281.
        """
        is_recorded = request.effects is None or effects <= request.effects
        if not request.has_finalizer or not is_recorded:
            return await self.writer.add_finalizer(request, effects)
        if state.rollback.side_effects is None and self.reads.may_predate_term(request):
            # Fence the previous leader: a new resourceVersion makes any status write that it still has in flight fail
            # with a Conflict. Such a write would not describe what is prepared from here on.
            return await self.writer.fence(request)
        return request

    async def _bind(
        self, request: BindRequest, ctx: BindContext, snapshot: Snapshot, state: RequestState
    ) -> tuple[Status, Snapshot]:
        """Run the attempt; return its status, OK only if the pod is on its node, and the snapshot after it."""
        node_uid = self.informers.node_uid(request.selected_node)
        running = Running(request, node_uid, ctx.cancelled, ctx.posts)
        state.attempt.hold(running)
        try:
            with noting(state.attempt.writes):
                status = await self._run_points(ctx, running, state)
        finally:
            state.attempt.stop()
            if running.past_point:
                state.rollback.prepare()
        snapshot = replace(snapshot, live=frozenset())  # read before the attempt
        is_ok = status.code is Code.OK
        is_unacknowledged = state.attempt.unacknowledged_at is not None
        may_be_unknown = (running.past_point and not ctx.posts.rejected) or is_unacknowledged
        if is_ok and ctx.posts.acknowledged:
            return status, snapshot
        state.attempt.end_bind()
        if not is_ok and not may_be_unknown:
            return status, snapshot
        # The bind may have succeeded and only its reply been lost, in this attempt or in an earlier one. Or a bind
        # plugin has sent a Binding of its own.
        snapshot = await self.reads.read_live(snapshot, Target.POD)
        if is_bound_as_asked(request, snapshot.pod_view):
            return status if is_ok else Status.ok(), snapshot
        if not is_ok:
            return status, snapshot
        # A call that the plugin has sent may still take effect.
        state.attempt.mark_unacknowledged(self.clock.monotonic())
        why = f"bind answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return Status.retry(why).from_plugin(status.plugin), snapshot

    async def _run_points(self, ctx: BindContext, running: Running, state: RequestState) -> Status:
        """Call the plugins up to the Binding."""
        status = await self.runner.run_pre_bind(ctx)
        if status.code is not Code.OK:
            state.gang.leave()
            return status
        if self.gangs is not None and ctx.pod is not None:
            status = await self.gangs.admit(running.request, ctx.pod, state)
            if status.code is not Code.OK:
                return status
        if ctx.cancelled.is_set() or not self.informers.still_wanted(running.request, running.node_uid):
            return WITHDRAWN
        state.attempt.pass_point(self.informers.expect_bind(running.request))
        status = await self.runner.run_bind(ctx)
        if self.gangs is not None and ctx.pod is not None and ctx.posts.acknowledged:
            self.gangs.bound(ctx.pod)
        return status
