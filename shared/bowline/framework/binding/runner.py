"""Calls the plugins' binding methods in order, checks what they return, and merges the results into one Status.

An extension point is the list of the plugins that override its method, in configured order. The Runner owns what a
plugin must not decide: which plugins run concurrently, how long a call may take, what a result means for the others.
It keeps each plugin's in-memory state by request UID, so that an attempt after WAIT or RETRY finds the state of the
previous one. It writes nothing and decides nothing about the request.

An exception and an invalid result are a wait for the plugin's repair; they name the plugin and the extension point,
are counted and logged. An error of the API server or of the network is TRANSIENT instead, and so is a call that has
spent its time waiting for the API server. No exception of a plugin leaves this module, except the cancellation of the
attempt itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

from bowline.api.bindrequest import AllocationKind, BindRequest
from bowline.api.meta import Object, ObjectKey, ObjectUID
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.groups import pre_bind_groups
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.binding.points import POINTS, at_point
from bowline.framework.binding.post import denied_status
from bowline.framework.binding.results import (
    InvalidResult,
    as_demands,
    as_failure,
    as_flag,
    as_metadata,
    as_none,
    as_status,
    as_terminal,
    defect,
)
from bowline.framework.plugin import Plugin
from bowline.framework.plugin_status import Code, Status, merge_waits, undone
from bowline.framework.reason import Reason
from bowline.kube.accounting import Budget
from bowline.kube.errors import Forbidden, InfrastructureError, TooLarge
from bowline.runtime.tasks import all_done, raise_foreign_cancellation

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WITHDRAWN = Status(Code.CANCELLED, ("the request was withdrawn",))
# The result of a call that was cancelled together with its attempt.
_CANCELLED = Status(Code.CANCELLED)
_ABANDONED = "ignores its cancellation: its task continues without an attempt, and may still have effects"


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure of a synchronous call that returned no usable value."""

    status: Status


class Observer(Protocol):
    """Notified of every asynchronous call of a plugin: for metrics, the history, the overdue monitor."""

    def call_began(self, plugin: str, point: str, ctx: BindContext) -> None: ...

    def call_ended(self, plugin: str, point: str, ctx: BindContext, status: Status, seconds: float) -> None: ...

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None: ...

    def forgotten(self, key: ObjectKey) -> None: ...


@dataclass(frozen=True, slots=True)
class Served:
    """The allocations of a request that plugins support, and the errors of plugins whose call failed."""

    demands: frozenset[AllocationKind]
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginCall:
    """A plugin's call; ``key`` and ``uid`` of its request, if it belongs to an attempt."""

    plugin: str
    point: str
    key: ObjectKey | None
    uid: ObjectUID

    @property
    def fields(self) -> Mapping[str, str]:
        """The request, for a log line."""
        return {"bindRequest": str(self.key)}


class Runner:
    """Runs the binding methods of the enabled plugins."""

    def __init__(self, plugins: Sequence[Plugin], observer: Observer) -> None:
        self._observer = observer
        self._plugins = {point: at_point(plugins, point) for point in POINTS}
        effects = (Plugin.has_side_effects, BindingPlugin.rollback, BindingPlugin.release)
        with_effects = {plugin for point in effects for plugin in self._plugins[point]}
        self._with_effects = tuple(
            plugin for plugin in plugins if isinstance(plugin, BindingPlugin) and plugin in with_effects
        )
        # The in-memory state of each request, by plugin.
        self._states: dict[ObjectUID, dict[str, dict[str, Any]]] = {}
        # The call that each task is in.
        self._calls: dict[asyncio.Task[Any] | None, PluginCall] = {}

    def current_call(self, loop: asyncio.AbstractEventLoop) -> PluginCall | None:
        """Return the call that the event loop is executing. May be called from another thread."""
        return self._calls.get(asyncio.current_task(loop))

    # --- pure queries ---

    def served(self, request: BindRequest) -> Served:
        """Return the demands of the request that enabled plugins fulfil. A plugin whose call fails serves nothing."""
        demands: set[AllocationKind] = set()
        errors = []
        for plugin in self._plugins[BindingPlugin.supported_allocations]:
            result = self._call(
                plugin, "supported_allocations", as_demands, None, plugin.supported_allocations, request
            )
            if isinstance(result, Failed):
                errors.append(f"{plugin.name}: {result.status.message}")
            else:
                demands.update(result)
        return Served(frozenset(demands), tuple(errors))

    def effects(self, request: BindRequest, pod: Object | None) -> frozenset[str]:
        """Return the plugins of which an attempt may leave side effects that only rollback removes.

        ``pod``: None if it is not known. A plugin whose call fails is one of them: an unnecessary finalizer costs a
        write, a missing one a leak.
        """
        return frozenset(plugin.name for plugin in self._with_effects if self._has_effects(plugin, request, pod))

    def _has_effects(self, plugin: BindingPlugin, request: BindRequest, pod: Object | None) -> bool:
        if self._applies(plugin, request, pod) is False:
            return False
        if plugin not in self._plugins[Plugin.has_side_effects]:
            return True
        result = self._call(plugin, "has_side_effects", as_flag, None, plugin.has_side_effects, request, pod)
        return isinstance(result, Failed) or result

    def _applies(self, plugin: BindingPlugin, request: BindRequest, pod: Object | None) -> bool | Failed:
        """Return whether the plugin applies to the pod; True for a pod that is not known."""
        if pod is None or plugin not in self._plugins[BindingPlugin.applies]:
            return True
        return self._call(plugin, "applies", as_flag, None, plugin.applies, pod, request)

    def _applying(self, point: Callable[..., Any], ctx: BindContext) -> list[BindingPlugin]:
        """Return the plugins of the point that apply; a failure to state it is that of the attempt's pre_bind."""
        plugins = self._plugins[point]
        return [plugin for plugin in plugins if self._applies(plugin, ctx.request, ctx.pod) is not False]

    @property
    def may_hold(self) -> bool:
        """Whether a plugin may hold something for a bound pod."""
        return bool(self._plugins[BindingPlugin.release])

    def holders(self, request: BindRequest) -> tuple[str, ...]:
        """Return the plugins that may hold something for the request's pod once it is bound."""
        effects = (request.effects or ()) if request.has_finalizer else ()
        return tuple(plugin.name for plugin in self._plugins[BindingPlugin.release] if plugin.name in effects)

    @property
    def remembered(self) -> int:
        """Number of requests with in-memory state."""
        return len(self._states)

    # --- extension points ---

    async def run_pre_bind(self, ctx: BindContext) -> Status:
        """Run pre_bind of the plugins that apply, by group; for most pods there are none.

        The first failure cancels the other calls of its group and ends the run. A WAIT lets the other calls of its
        group finish, then ends the run. So does ``ctx.cancelled``, with the result WITHDRAWN. All calls have ended
        then, also after a cancellation: the rollback that follows must see all their writes.
        """
        for plugin in self._plugins[BindingPlugin.applies]:
            applies = self._applies(plugin, ctx.request, ctx.pod)
            if isinstance(applies, Failed):
                return applies.status
        groups = pre_bind_groups(self._applying(BindingPlugin.pre_bind, ctx))
        return await _cancellable(self._run_groups(groups, ctx), ctx.cancelled) if groups else Status.ok()

    async def run_bind(self, ctx: BindContext) -> Status:
        """Call the bind plugins in order; the first result that is not SKIP decides. If all skip, the result is
        FATAL.
        """
        failure = self._collect("binding_annotations", ctx, ctx.annotations) or self._collect(
            "binding_labels", ctx, ctx.labels
        )
        if failure is not None:
            return self._reclassify(ctx, failure)
        binders = self._applying(BindingPlugin.bind, ctx)
        for plugin in binders:
            status = await self._run(plugin, "bind", as_status, plugin.budgets.call_s, ctx, plugin.bind)
            if status.code is not Code.SKIP:
                return self._reclassify(ctx, status)
        names = ", ".join(plugin.name for plugin in binders) or "none is enabled"
        why = f"no bind plugin took the pod (asked: {names}); enable default_binder or one that binds this pod"
        return Status.fatal(why, Reason.NO_PLUGIN)

    def _collect(self, point: str, ctx: BindContext, collected: dict[str, str]) -> Status | None:
        """Add the plugins' annotations or labels to those of the Binding; return the first failure.

        Two values of one key are a defect of a plugin: neither is silently lost.
        """
        owners = dict.fromkeys(collected, "the framework")
        for plugin in self._applying(getattr(BindingPlugin, point), ctx):
            method = getattr(plugin, point)
            added = self._call(plugin, point, as_metadata, ctx, method, self._with_state(plugin, ctx))
            if isinstance(added, Failed):
                return added.status
            for key, value in added.items():
                if collected.setdefault(key, value) != value:
                    why = (
                        f"{point}: {owners[key]} sets {key} to {collected[key]!r} and {plugin.name} to {value!r}; "
                        "use a key of the plugin's own"
                    )
                    return defect(plugin.name, why)
                owners.setdefault(key, plugin.name)
        return None

    async def run_post_bind(self, ctx: BindContext) -> None:
        """Call every plugin that applies after the pod is bound. Errors are counted; the pod stays bound.

        Each plugin has its own budget, so a slow one does not prevent the calls of the others.
        """
        for plugin in self._applying(BindingPlugin.post_bind, ctx):
            await self._run(plugin, "post_bind", as_none, plugin.budgets.post_bind_s, ctx, plugin.post_bind)

    async def run_on_terminal_failure(self, ctx: BindContext, status: Status) -> Status:
        """Return the failure that ends a request, with the plugins' advice; TRANSIENT if one must be asked again.

        After another error of a plugin, which is reported, its advice is missing.
        """
        for plugin in self._applying(BindingPlugin.on_terminal_failure, ctx):
            advice: list[Status] = []

            def keep(result: Any, advice: list[Status] = advice) -> None:
                answer = as_terminal(result)
                advice.extend([answer] if answer is not None else [])

            call, budget_s = plugin.on_terminal_failure, plugin.budgets.rollback_s
            plugin_ctx = self._with_state(plugin, ctx)
            ended = await self._run_unobserved(
                plugin, "on_terminal_failure", keep, budget_s, ctx, call, plugin_ctx, status
            )
            if ended.code is Code.TRANSIENT:
                return ended
            if advice:
                status = replace(status, reasons=advice[0].reasons, suggestion=advice[0].suggestion)
        return status

    async def run_rollback(self, ctx: BindContext, why: Status) -> Status:
        """Roll back in reverse order. A failure does not stop the others; OK only if all returned OK or SKIP.

        Called are the plugins that the request records, whether the pod exists or not; all if it records none.
        TRANSIENT if every failure is the API server's or the network's. The plugins' in-memory state ends before: it
        describes what is prepared, and an attempt that followed would rely on it.
        """
        self._states.pop(ctx.request.uid, None)
        results = []
        for plugin in self._recorded(BindingPlugin.rollback, ctx):
            budget_s = plugin.budgets.rollback_s
            results.append(await self._run(plugin, "rollback", as_status, budget_s, ctx, plugin.rollback, why))
        self._states.pop(ctx.request.uid, None)
        return undone(results)

    async def run_release(self, ctx: BindContext) -> Status:
        """Let the plugins return what a bound pod has held, in reverse order; the result is that of a rollback."""
        results = []
        for plugin in self._recorded(BindingPlugin.release, ctx):
            budget_s = plugin.budgets.rollback_s
            results.append(await self._run(plugin, "release", as_status, budget_s, ctx, plugin.release))
        self._states.pop(ctx.request.uid, None)
        return undone(results)

    def _recorded(self, point: Callable[..., Any], ctx: BindContext) -> list[BindingPlugin]:
        """Return the plugins of the point that the request records, in reverse order; all if it records none."""
        effects = ctx.request.effects
        return [plugin for plugin in reversed(self._plugins[point]) if effects is None or plugin.name in effects]

    async def drop_request(self, key: ObjectKey, uid: ObjectUID) -> None:
        """Drop all in-memory state of a request that no longer exists, and notify observer and plugins."""
        self._states.pop(uid, None)
        self._observer.forgotten(key)
        for plugin in self._plugins[BindingPlugin.forget]:
            budget_s = plugin.budgets.rollback_s
            await self._run_unobserved(plugin, "forget", as_none, budget_s, None, plugin.forget, key)

    # --- groups ---

    async def _run_groups(self, groups: Sequence[Sequence[BindingPlugin]], ctx: BindContext) -> Status:
        for group in groups:
            status = await self._run_group(group, ctx)
            if status.code is not Code.OK:
                return self._reclassify(ctx, status)
        return Status.ok()

    async def _run_group(self, group: Sequence[BindingPlugin], ctx: BindContext) -> Status:
        if len(group) == 1:
            return await self._pre_bind_one(group[0], ctx)
        tasks = [
            asyncio.create_task(self._pre_bind_one(plugin, ctx), name=f"pre_bind {plugin.name}") for plugin in group
        ]
        failure: Status | None = None
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                results = [task.result() for task in tasks if task in done and not task.cancelled()]
                failures = [status for status in results if status.code not in (Code.OK, Code.WAIT)]
                if failures and failure is None:
                    failure = failures[0]
                    for task in pending:
                        task.cancel()
        finally:
            # Cancelled from outside: the other calls must not outlive the attempt.
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)
        if failure is not None:
            return failure
        # In the order of the plugins, whichever answers first: the same waits have the same text.
        waits = [status for task in tasks if (status := task.result()).code is Code.WAIT]
        return merge_waits(waits) if waits else Status.ok()

    async def _pre_bind_one(self, plugin: BindingPlugin, ctx: BindContext) -> Status:
        status = await self._run(plugin, "pre_bind", as_status, plugin.budgets.call_s, ctx, plugin.pre_bind)
        # A plugin with nothing to do may return either.
        return Status.ok() if status.code is Code.SKIP else status

    def _reclassify(self, ctx: BindContext, status: Status) -> Status:
        if status.code not in (Code.RETRY, Code.FATAL):
            return status
        for plugin in self._applying(BindingPlugin.on_failure, ctx):
            plugin_ctx = self._with_state(plugin, ctx)
            replacement = self._call(plugin, "on_failure", as_failure, ctx, plugin.on_failure, plugin_ctx, status)
            # An invalid result is reported; the failure is kept.
            if isinstance(replacement, Status):
                # A reason of its own names the plugin whose word it is.
                status = replacement.from_plugin(plugin.name if replacement.word else status.plugin)
        return status

    # --- one call of one plugin ---

    def _with_state(self, plugin: Plugin, ctx: BindContext) -> BindContext:
        """Return the context with this plugin's own state."""
        states = self._states.setdefault(ctx.request.uid, {})
        return replace(ctx, state=states.setdefault(plugin.name, {}))

    def _call(
        self,
        plugin: Plugin,
        point: str,
        check: Callable[[Any], T],
        ctx: BindContext | None,
        method: Callable[[Unpack[Ts]], Any],
        *arguments: *Ts,
    ) -> T | Failed:
        """Call a synchronous method. Returns its checked result, or ``Failed`` after an exception or an invalid
        result.
        """
        try:
            if ctx is None:
                return check(method(*arguments))
            with self._current(plugin, point, ctx):
                return check(method(*arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes a Status; _failure_status() reports it
            return Failed(self._failure_status(plugin, point, ctx, error))

    async def _run(
        self,
        plugin: Plugin,
        point: str,
        check: Callable[[Any], Status | None],
        budget_s: float,
        ctx: BindContext,
        method: Callable[[BindContext, Unpack[Ts]], Awaitable[Any]],
        *arguments: *Ts,
    ) -> Status:
        """Call an asynchronous method with the plugin's own context, within its budget.

        Returns its checked result, OK for None, or the failure. The observer is notified of start and end, also on
        cancellation.
        """
        plugin_ctx = self._with_state(plugin, ctx)
        self._observer.call_began(plugin.name, point, ctx)
        start = time.monotonic()
        status = _CANCELLED
        try:
            status = await self._run_unobserved(plugin, point, check, budget_s, ctx, method, plugin_ctx, *arguments)
        finally:
            self._observer.call_ended(plugin.name, point, ctx, status, time.monotonic() - start)
        return status

    async def _run_unobserved(
        self,
        plugin: Plugin,
        point: str,
        check: Callable[[Any], Status | None],
        budget_s: float,
        ctx: BindContext | None,
        method: Callable[[Unpack[Ts]], Awaitable[Any]],
        *arguments: *Ts,
    ) -> Status:
        """Like ``_run``, for a call that belongs to no attempt: only its errors are reported."""
        budget = Budget(budget_s)

        def report_abandonment() -> None:
            self._observer.plugin_raised(plugin.name, point, ctx, RuntimeError(_ABANDONED))

        try:
            in_task = self._in_task(plugin, point, ctx, method, *arguments)
            running = budget.run(in_task, f"{plugin.name}.{point}", report_abandonment)
            status = check(await raise_foreign_cancellation(running))
        except TimeoutError as error:
            if not budget.is_out:
                return self._failure_status(plugin, point, ctx, error)
            if budget.is_api_time:
                why = f"{point} waited {budget_s:g} s for the API server"
                return Status(Code.TRANSIENT, (why,), plugin.name)
            return Status.retry(f"{point} took longer than {budget_s:g} s").from_plugin(plugin.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes a Status; _failure_status() reports it
            return self._failure_status(plugin, point, ctx, error)
        if status is None or status.code is Code.OK:
            return Status.ok()
        return status.from_plugin(plugin.name)

    async def _in_task(
        self,
        plugin: Plugin,
        point: str,
        ctx: BindContext | None,
        method: Callable[[Unpack[Ts]], Awaitable[Any]],
        *arguments: *Ts,
    ) -> Any:
        """Call an asynchronous method in the present task. A SystemExit that leaves a task ends the event loop."""
        with self._current(plugin, point, ctx):
            try:
                return await method(*arguments)
            except SystemExit as error:
                raise RuntimeError(f"called sys.exit({error.code!r})") from error

    @contextmanager
    def _current(self, plugin: Plugin, point: str, ctx: BindContext | None) -> Iterator[None]:
        key, uid = (ctx.request.key, ctx.request.uid) if ctx is not None else (None, ObjectUID(""))
        task = asyncio.current_task()
        self._calls[task] = PluginCall(plugin.name, point, key, uid)
        try:
            yield
        finally:
            del self._calls[task]

    def _failure_status(
        self, plugin: Plugin, point: str, ctx: BindContext | None, error: Exception | SystemExit
    ) -> Status:
        if isinstance(error, InfrastructureError):
            return Status(Code.TRANSIENT, (str(error),), plugin.name, retry_after=error.retry_after)
        if isinstance(error, SystemExit):
            # A plugin that exits the process would end the work of all others.
            error = RuntimeError(f"called sys.exit({error.code!r})")
        if isinstance(error, TooLarge):
            return Status.fatal(f"{point}: {error.message}", Reason.INVALID).from_plugin(plugin.name)
        denial = denied_status(error.message) if isinstance(error, Forbidden) else None
        if denial is None or denial.code is not Code.WAIT:  # a policy of Bowline itself is no mistake of the plugin
            self._observer.plugin_raised(plugin.name, point, ctx, error)
        # A policy denies the object of this request; a right is missing for all of them.
        if denial is not None and denial.reason is not Reason.RBAC_MISSING:
            return denial.from_plugin(plugin.name)
        what = str(error) if isinstance(error, InvalidResult) else f"raised {type(error).__name__}: {error}"
        return defect(plugin.name, f"{point} {denial.message if denial is not None else what}")


async def _cancellable(pre_bind: Coroutine[Any, Any, Status], withdrawn: asyncio.Event) -> Status:
    """Run pre_bind and cancel it if the attempt is withdrawn; ends only after it has ended."""
    preparing = asyncio.create_task(pre_bind, name="pre_bind")
    withdrawal = asyncio.create_task(withdrawn.wait(), name="cancelled")
    try:
        await asyncio.wait({preparing, withdrawal}, return_when=asyncio.FIRST_COMPLETED)
        return preparing.result() if preparing.done() else WITHDRAWN
    finally:
        preparing.cancel()
        withdrawal.cancel()
        await all_done(preparing, withdrawal)
