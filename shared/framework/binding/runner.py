"""Calls the plugins' binding methods in order and merges their results into one Status.

An extension point is the list of the plugins that override it, in configured order. The Runner owns what a plugin
must not decide: which plugins run concurrently, what a result means for the others, how long a call may take.
``calls`` makes a single call and handles its failures. The Runner keeps each plugin's in-memory state by request UID,
so that an attempt after WAIT or RETRY finds the state of the previous one. It writes nothing and decides nothing
about the request.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shared.api.bindrequest import AllocationKind, BindRequest
from shared.api.meta import ObjectKey, ObjectUID
from shared.framework.binding import calls
from shared.framework.binding.calls import Failed, Observer, PluginCalls
from shared.framework.binding.context import BindContext
from shared.framework.binding.groups import Group, merge_failures, merge_waits, pre_bind_groups
from shared.framework.plugin import Plugin, overrides
from shared.framework.status import Code, Reason, Status


@dataclass(slots=True)
class _States:
    """In-memory state of one request, by plugin."""

    key: ObjectKey
    by_plugin: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Served:
    """The allocations of a request that plugins support, and the errors of plugins whose call failed."""

    demands: frozenset[AllocationKind]
    errors: tuple[str, ...] = ()


class Runner:
    """Runs the binding methods of the enabled plugins."""

    def __init__(self, plugins: Sequence[Plugin], observer: Observer) -> None:
        self._plugins = tuple(plugins)
        self._observer = observer
        self._calls = PluginCalls(observer)
        self._states: dict[ObjectUID, _States] = {}
        self._supported_allocations = self._overriding("supported_allocations")
        self._has_side_effects = self._overriding("has_side_effects")
        self._pre_bind = self._overriding("pre_bind")
        self._binding_annotations = self._overriding("binding_annotations")
        self._bind = self._overriding("bind")
        self._post_bind = self._overriding("post_bind")
        self._rollback = self._overriding("rollback")[::-1]
        self._forget = self._overriding("forget")
        self._on_failure = self._overriding("on_failure")

    # --- pure queries ---

    def served(self, request: BindRequest) -> Served:
        """Return the demands of the request that enabled plugins fulfil. A plugin whose call fails serves nothing."""
        demands: set[AllocationKind] = set()
        errors = []
        for plugin in self._supported_allocations:
            method = partial(plugin.supported_allocations, request)
            found = self._calls.call(plugin, "supported_allocations", None, method, calls.as_demands)
            if isinstance(found, Failed):
                errors.append(f"{plugin.name}: {found.status.message}")
            else:
                demands.update(found)
        return Served(frozenset(demands), tuple(errors))

    def has_side_effects(self, request: BindRequest) -> bool:
        """Return whether an attempt may leave side effects that only rollback removes.

        A plugin whose call fails counts as True: an unnecessary finalizer costs a write, a missing one a leak.
        """
        for plugin in self._has_side_effects:
            method = partial(plugin.has_side_effects, request)
            found = self._calls.call(plugin, "has_side_effects", None, method, calls.as_flag)
            if isinstance(found, Failed) or found:
                return True
        return False

    @property
    def remembered(self) -> int:
        """Number of requests with in-memory state."""
        return len(self._states)

    # --- extension points ---

    def preflight(self, ctx: BindContext) -> tuple[Group, ...] | Status:
        """Return the plugins whose pre_bind must run, by group; for most pods none. A Status is a failure."""
        found = []
        for plugin in self._pre_bind:
            method = partial(plugin.preflight, self._own(plugin, ctx))
            answer = self._calls.call(plugin, "preflight", ctx, method, calls.as_preflight)
            if isinstance(answer, Failed):
                return self._reclassified(ctx, answer.status)
            found.append((plugin, answer))
        return pre_bind_groups(found)

    async def run_pre_bind(self, ctx: BindContext, groups: Sequence[Group]) -> Status:
        """Run the groups in order. The first failure cancels the other calls of its group and ends the run.

        A WAIT lets the other calls of its group finish, then ends the run.
        """
        for group in groups:
            status = await self._run_group(group, ctx)
            if status.code is not Code.OK:
                return self._reclassified(ctx, status)
        return Status.ok()

    async def run_bind(self, ctx: BindContext) -> Status:
        """Call the bind plugins in order; the first result that is not SKIP decides. If all skip, the result is
        FATAL.
        """
        for plugin in self._binding_annotations:
            collect = partial(plugin.binding_annotations, self._own(plugin, ctx))
            added = self._calls.call(plugin, "binding_annotations", ctx, collect, calls.as_annotations)
            if isinstance(added, Failed):
                return self._reclassified(ctx, added.status)
            ctx.annotations.update(added)
        for plugin in self._bind:
            method = partial(plugin.bind, self._own(plugin, ctx))
            status = await self._calls.run(plugin, "bind", ctx, plugin.budgets.call_s, method, calls.as_status)
            if status.code is not Code.SKIP:
                return self._reclassified(ctx, status)
        names = ", ".join(plugin.name for plugin in self._bind) or "none is enabled"
        why = f"no bind plugin took the pod (asked: {names}); enable default_binder or one that binds this pod"
        return Status.fatal(why, Reason.NO_PLUGIN)

    async def run_post_bind(self, ctx: BindContext) -> None:
        """Call every plugin after the pod is bound. Errors are counted; the pod stays bound.

        Each plugin has its own budget, so a slow one does not prevent the calls of the others.
        """
        for plugin in self._post_bind:
            method = partial(plugin.post_bind, self._own(plugin, ctx))
            await self._calls.run(plugin, "post_bind", ctx, plugin.budgets.post_bind_s, method, calls.as_none)

    async def run_rollback(self, ctx: BindContext, why: Status) -> Status:
        """Roll back in reverse order. A failure does not stop the others; OK only if all returned OK or SKIP.

        TRANSIENT if every failure is the API server's or the network's.
        """
        failures = []
        for plugin in self._rollback:
            method = partial(plugin.rollback, self._own(plugin, ctx), why)
            status = await self._calls.run(
                plugin, "rollback", ctx, plugin.budgets.rollback_s, method, calls.as_status
            )
            if status.code not in (Code.OK, Code.SKIP):
                failures.append(status)
        return merge_failures(failures) if failures else Status.ok()

    async def forget(self, key: ObjectKey, uid: ObjectUID) -> None:
        """Drop all in-memory state of a request that no longer exists, and notify observer and plugins."""
        self._states.pop(uid, None)
        self._observer.forgotten(key)
        for plugin in self._forget:
            method = partial(plugin.forget, key)
            await self._calls.run_unobserved(plugin, "forget", None, plugin.budgets.rollback_s, method, calls.as_none)

    # --- one plugin ---

    def _overriding(self, method: str) -> tuple[Plugin, ...]:
        return tuple(plugin for plugin in self._plugins if overrides(plugin, method))

    def _own(self, plugin: Plugin, ctx: BindContext) -> BindContext:
        """Return the context with this plugin's own state."""
        states = self._states.get(ctx.request.uid)
        if states is None:
            states = self._states[ctx.request.uid] = _States(ctx.request.key)
        return ctx.with_state(states.by_plugin.setdefault(plugin.name, {}))

    async def _run_group(self, group: Group, ctx: BindContext) -> Status:
        if len(group.plugins) == 1:
            return await self._pre_bind_one(group.plugins[0], ctx)
        tasks = [
            asyncio.create_task(self._pre_bind_one(plugin, ctx), name=f"pre_bind {plugin.name}")
            for plugin in group.plugins
        ]
        failure: Status | None = None
        waits = []
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found = [task.result() for task in tasks if task in done and not task.cancelled()]
                waits += [status for status in found if status.code is Code.WAIT]
                failed = [status for status in found if status.code not in (Code.OK, Code.WAIT)]
                if failed and failure is None:
                    failure = failed[0]
                    for task in pending:
                        task.cancel()
        finally:
            # Cancelled from outside: the other calls must not outlive the attempt.
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)
        return failure or (merge_waits(waits) if waits else Status.ok())

    async def _pre_bind_one(self, plugin: Plugin, ctx: BindContext) -> Status:
        method = partial(plugin.pre_bind, self._own(plugin, ctx))
        status = await self._calls.run(plugin, "pre_bind", ctx, plugin.budgets.call_s, method, calls.as_status)
        # A plugin with nothing to do may return either.
        return Status.ok() if status.code is Code.SKIP else status

    def _reclassified(self, ctx: BindContext, status: Status) -> Status:
        if status.code not in (Code.RETRY, Code.FATAL):
            return status
        for plugin in self._on_failure:
            method = partial(plugin.on_failure, self._own(plugin, ctx), status)
            changed = self._calls.call(plugin, "on_failure", ctx, method, calls.as_failure)
            # An invalid result is reported; the failure is kept.
            if isinstance(changed, Status):
                status = changed.from_plugin(status.plugin)
        return status


# All extension points of the reconciler, in the order of an attempt.
POINTS = (
    *(
        "supported_allocations",
        "has_side_effects",
        "preflight",
        "pre_bind",
        "binding_annotations",
        "bind",
        "post_bind",
    ),
    *("on_failure", "rollback", "forget", "routes"),
)


def order_by_point(plugins: Sequence[Plugin]) -> Mapping[str, tuple[str, ...]]:
    """Return the plugins of each extension point, in calling order; for logs, metrics and debug pages."""
    table = {point: tuple(p.name for p in plugins if overrides(p, point)) for point in POINTS}
    return {**table, "rollback": table["rollback"][::-1]}
