"""Runs one attempt for a request: pre_bind, the gang, bind, verify. ``reconciler`` acts on its outcome.

Without failures, no API call precedes the Binding except the finalizer's and those of plugins. From its beginning an
attempt is withdrawn by the events of the caches (``watch_events``), which are not read once more before the Binding;
the Binding's own preconditions cover the rest.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectUID, uid_of
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.runner import WITHDRAWN, Runner
from bowline.framework.plugin_status import Done, Status
from bowline.kube.late_writes import noting
from bowline.runtime.clock import Clock
from bowline_reconciler.binding.gangs import Gangs
from bowline_reconciler.binding.reads import Reads
from bowline_reconciler.binding.state import RequestState, Running
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.bound_pods import BoundPodWatch
from bowline_reconciler.decide.actions import Fail
from bowline_reconciler.decide.report import BindingContent
from bowline_reconciler.decide.snapshot import (
    Absent,
    Outcome,
    Snapshot,
    Target,
    is_bound_as_asked,
)


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
    bound_pods: BoundPodWatch
    runner: Runner
    writer: Writer
    clock: Clock
    gangs: Gangs | None = None

    async def run(self, snapshot: Snapshot, state: RequestState, effects: Collection[str]) -> EndedAttempt:
        """Run an attempt.

        ``effects``: the plugins that may leave side effects, so the finalizer records them first.
        """
        request, started_at = snapshot.request, self.clock.now()
        node = None if isinstance(snapshot.node, Absent) or Target.NODE in snapshot.live else snapshot.node
        running = state.attempt.begin(request, uid_of(node) if node is not None else None)
        if snapshot.live and not self.reads.still_wanted(running):
            state.attempt.withdraw()  # it has changed during the live read
        try:
            if effects and not running.cancelled.is_set():
                request = await self._record(request, state, frozenset(effects))
                state.rollback.expect(request)
            snapshot = replace(snapshot, request=request, live=frozenset())  # read before the attempt
            ctx = self.reads.context(snapshot, running)
            with noting(state.attempt.writes):
                status = await self._run_points(ctx, running, state)
        finally:
            state.attempt.stop()
        ctx.views.clear()  # the context is kept until the bind is completed, and post_bind receives the bound pod
        if not isinstance(status, Done) or not running.posts.acknowledged:
            status, snapshot = await self._resolve(ctx, running, status, snapshot, state)
        state.attempt.finish()
        return EndedAttempt(Outcome(status, started_at), ctx, snapshot)

    def ended_attempt(self, snapshot: Snapshot, outcome: Outcome) -> EndedAttempt:
        """Return an attempt that has ended with that outcome, of which nothing else is known."""
        return EndedAttempt(outcome, self.reads.context(snapshot), snapshot)

    async def interrupted_attempt(self, request: BindRequest, state: RequestState, why: str) -> EndedAttempt:
        """Return the attempt that a failed call outside of the plugins has ended."""
        snapshot = await self.reads.with_pod(self.reads.from_cache(request, state))
        return self.ended_attempt(snapshot, Outcome(Status.retry(why), self.clock.now()))

    async def set_owner(self, request: BindRequest, state: RequestState, pod_uid: ObjectUID) -> None:
        """Begin an attempt by tying the request to its present pod; another reconcile goes on with it."""
        state.attempt.start()
        await self.writer.set_owner(request, pod_uid)

    async def _record(self, request: BindRequest, state: RequestState, effects: frozenset[str]) -> BindRequest:
        """Return the request with finalizer and plugins recorded and, after a change of leader, fenced.

        A finalizer without a record means every plugin. Decision 281.
        """
        is_recorded = request.effects is None or effects <= request.effects
        if not request.has_finalizer or not is_recorded:
            return await self.writer.add_finalizer(request, effects)
        if state.rollback.side_effects is None and self.reads.may_predate_term(request):
            # Fence the previous leader: a new resourceVersion makes any status write that it still has in flight fail
            # with a Conflict. Such a write would not describe what is prepared from here on.
            return await self.writer.fence(request)
        return request

    async def _resolve(
        self, ctx: BindContext, running: Running, status: Status, snapshot: Snapshot, state: RequestState
    ) -> tuple[Status, Snapshot]:
        """Return the status of an attempt without an acknowledged Binding, by a live read of the pod if anybody may
        have bound it: OK only if it is on its node. And the snapshot after it.
        """
        is_ok, request = isinstance(status, Done), snapshot.request
        is_unacknowledged = state.attempt.unacknowledged_at is not None
        state.attempt.end_bind()
        if not is_ok and not is_unacknowledged and (not state.attempt.past_point or running.posts.rejected):
            return status, snapshot
        # The bind may have succeeded and only its reply been lost, in this attempt or in an earlier one. Or a bind
        # plugin or another client has sent a Binding of its own.
        snapshot = await self.reads.read_live(snapshot, Target.POD)
        if is_bound_as_asked(request, snapshot.pod_view):
            return Status.ok(), snapshot
        action = self.reads.decide_on(snapshot, state)
        if isinstance(action, Fail):
            return action.status, snapshot  # as of any pod that is elsewhere or gone
        if not is_ok:
            return status, snapshot
        # A call that the plugin has sent may still take effect.
        state.attempt.end_bind(self.clock.monotonic())
        why = f"answered OK, but pod {request.pod_key} is not on node {request.selected_node}"
        return self.runner.bound_nothing(ctx, status.plugin, why), snapshot

    async def _run_points(self, ctx: BindContext, running: Running, state: RequestState) -> Status:
        """Call the plugins up to the Binding."""
        if ctx.cancelled.is_set():
            return WITHDRAWN
        status = await self.runner.run_pre_bind(ctx)
        if not isinstance(status, Done):
            state.gang.leave()
            return status
        if self.gangs is not None and ctx.pod is not None:
            status = await self.gangs.admit(running.request, ctx.pod, state)
            if not isinstance(status, Done):
                return status
        if ctx.cancelled.is_set():
            return WITHDRAWN
        # The Runner collects the content from here on, and no plugin replaces it.
        content = BindingContent(ctx.annotations, ctx.labels)
        state.attempt.pass_point(self.bound_pods.expect(running.request), content)
        status = await self.runner.run_bind(ctx)
        if self.gangs is not None and ctx.pod is not None and ctx.posts.acknowledged:
            self.gangs.bound(ctx.pod)
        return status
