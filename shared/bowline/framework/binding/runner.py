"""Calls the plugins' binding methods in order, and merges the results into one Status.

An extension point is the list of the plugins that override its method, in configured order. The Runner owns what a
plugin must not decide: which plugins run concurrently, how long a call may take, what a result means for the others.
It writes nothing, decides nothing about the request, and keeps nothing of it: what plugins remember is in its context
(``states``). What happens in one call is in ``calls``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import orjson

from bowline.api.bindrequest import BindRequest
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.calls import (
    InvalidResult,
    PluginCaller,
    as_flag,
    as_none,
    as_prepared,
    as_status,
    invalid,
)
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin, overriding
from bowline.framework.interface.status import (
    WITHDRAWN,
    Answers,
    Done,
    Failure,
    Retriable,
    Skipped,
    Status,
    Transient,
    Waiting,
    merge_waits,
    undone,
)
from bowline.framework.reason import Reason
from bowline.kube.binding import addition_errors, label_errors
from bowline.runtime.tasks import all_done

P = TypeVar("P", bound=BindingPlugin)
# In the order of an attempt.
POINTS: tuple[Callable[..., Any], ...] = (
    BindingPlugin.applies,
    Plugin.has_side_effects,
    BindingPlugin.pre_bind,
    BuiltinBindingPlugin.binding_annotations,
    BindingPlugin.bind,
    BindingPlugin.post_bind,
    BuiltinBindingPlugin.on_failure,
    BindingPlugin.rollback,
    BindingPlugin.release,
    BindingPlugin.forget,
)
BUILTIN_POINTS = tuple(point for point in POINTS if point.__name__ in vars(BuiltinBindingPlugin))


def at_point(plugins: Sequence[Plugin], point: Callable[..., Any]) -> tuple[BindingPlugin, ...]:
    """Return the plugins that override an extension point, in order; a rollback that is not overridden is release."""
    methods = (point, BindingPlugin.release) if point is BindingPlugin.rollback else (point,)
    binding_plugins = [plugin for plugin in plugins if isinstance(plugin, BindingPlugin)]
    return tuple(plugin for plugin in binding_plugins if any(overriding([plugin], method) for method in methods))


def order_by_point(plugins: Sequence[Plugin]) -> Mapping[str, tuple[str, ...]]:
    """Return the plugins of each extension point, in calling order; for logs and metrics."""
    table = {point.__name__: tuple(plugin.name for plugin in at_point(plugins, point)) for point in POINTS}
    return {**table, "rollback": table["rollback"][::-1], "release": table["release"][::-1]}


@dataclass(slots=True)
class Additions:
    """The annotations or labels of a Binding, to which plugins add. ``check`` returns the errors of a plugin's."""

    entries: dict[str, str]
    check: Callable[[Mapping[str, str]], Sequence[FieldError]]
    owners: dict[str, str] = field(default_factory=dict)

    def add(self, plugin: str, result: Any) -> None:
        """Add what a plugin returned. Raises InvalidResult for what the API server would not store, or would store
        and then reject every update of the pod, and for another value of a key.
        """
        if not isinstance(result, Mapping):
            raise invalid(result, "a mapping of keys to values")
        for key, value in result.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidResult(f"returned {key!r}: {value!r}; keys and values must be strings")
        if not result:
            return
        errors = [
            f"returned {key}: {value!r}, and {self.owners.get(key, 'the framework')} sets it to "
            f"{self.entries[key]!r}; use a key of its own"
            for key, value in result.items()
            if self.entries.get(key, value) != value
        ]
        errors += [f"returned {error}" for error in self.check(result)]
        if errors:
            raise InvalidResult("; ".join(errors))
        self.entries.update(result)
        self.owners.update(dict.fromkeys(result, plugin))


class Runner:
    """Runs the binding methods of the enabled plugins."""

    def __init__(self, plugins: Sequence[Plugin], caller: PluginCaller) -> None:
        self._caller = caller
        self._names = frozenset(plugin.name for plugin in plugins)
        self._plugins = {point: at_point(plugins, point) for point in POINTS}
        builtins = [plugin for plugin in plugins if isinstance(plugin, BuiltinBindingPlugin)]
        self._demands = frozenset(kind for plugin in builtins for kind in plugin.allocations)
        self._builtins = {
            point: [plugin for plugin in self._plugins[point] if isinstance(plugin, BuiltinBindingPlugin)]
            for point in BUILTIN_POINTS
        }

    # --- pure queries ---

    def answers(self, request: BindRequest, pod: Object | None) -> Answers:
        """Return what the plugins state of the request. ``pod``: None if it is not known.

        A plugin whose call fails serves nothing, and may leave side effects: an unnecessary finalizer costs a write,
        a missing one a leak.
        """
        holders, idle, defects = self.holders(request), set(), []
        if request.spec is None:
            return Answers(holders=holders)
        for plugin in self._plugins[BindingPlugin.applies] if pod is not None else ():
            own_request, own_pod = _own(plugin, request, pod)
            applies_to = partial(plugin.applies, own_pod or {}, own_request)
            applies = self._caller.ask(plugin, "applies", as_flag, request, None, applies_to)
            if isinstance(applies, Status):
                defects.append(applies)
            elif not applies:
                idle.add(plugin.name)
        effects = {
            plugin.name
            for plugin in self._plugins[BindingPlugin.rollback]
            if plugin.name not in idle and self._has_effects(plugin, request, pod)
        }
        return Answers(self._demands, frozenset(effects), holders, frozenset(idle), tuple(defects))

    def _has_effects(self, plugin: BindingPlugin, request: BindRequest, pod: Object | None) -> bool:
        if plugin not in self._plugins[Plugin.has_side_effects]:
            return True
        query = partial(plugin.has_side_effects, *_own(plugin, request, pod))
        result = self._caller.ask(plugin, "has_side_effects", as_flag, request, None, query)
        return isinstance(result, Status) or result

    def _applying(self, plugins: Iterable[P], ctx: BindContext) -> list[P]:
        """Return the plugins that apply; a failure to state it is that of the attempt's pre_bind."""
        answers = self._answers(ctx)
        return [plugin for plugin in plugins if plugin.name not in answers.idle]

    def _answers(self, ctx: BindContext) -> Answers:
        """Return what the plugins have stated for the attempt; asked now for a context that is of none."""
        return ctx.answers if ctx.answers is not None else self.answers(ctx.request, ctx.pod)

    @property
    def may_hold(self) -> bool:
        """Whether a plugin may hold something for a bound pod."""
        return bool(self._plugins[BindingPlugin.release])

    def holders(self, request: BindRequest) -> tuple[str, ...]:
        """Return the plugins that may hold something for the request's pod once it is bound."""
        effects = (request.effects or ()) if request.has_finalizer else ()
        return tuple(plugin.name for plugin in self._plugins[BindingPlugin.release] if plugin.name in effects)

    # --- extension points ---

    async def run_pre_bind(self, ctx: BindContext) -> Status:
        """Run pre_bind of the plugins that apply, in order; for most pods there are none.

        The first failure ends the run. So does a Waiting, except that of parallel neighbours each is called, so that
        they wait at the same time. ``ctx.cancelled`` cancels the run, with the result WITHDRAWN. The call has ended
        then: the rollback that follows must see all its writes.
        """
        defects = self._answers(ctx).defects
        if defects:
            return defects[0]
        plugins = self._applying(self._plugins[BindingPlugin.pre_bind], ctx)
        return await _cancellable(self._pre_bind(plugins, ctx), ctx.cancelled) if plugins else Status.ok()

    async def run_bind(self, ctx: BindContext) -> Status:
        """Call the bind plugins in order; the first result that is not Skipped decides. If all skip, it is Fatal."""
        failure = self._collect(ctx)
        if failure is not None:
            return self._notified(ctx, failure)
        binders = self._applying(self._plugins[BindingPlugin.bind], ctx)
        for plugin in binders:
            call = partial(plugin.bind, self._of_plugin(plugin, ctx))
            status = await self._caller.run(plugin, "bind", as_status, plugin.budgets.call_s, ctx, call)
            if isinstance(status, Done):
                return status
            if not isinstance(status, Skipped):
                return self._notified(ctx, status)
        names = ", ".join(plugin.name for plugin in binders) or "none is enabled"
        why = f"no bind plugin took the pod (asked: {names}); enable default_binder or one that binds this pod"
        return Status.fatal(why, Reason.NO_PLUGIN)

    def bound_nothing(self, ctx: BindContext, name: str, why: str) -> Status:
        """Report that the bind of the plugin is Done, and the pod is not bound; returns the attempt's Status."""
        plugin = next(plugin for plugin in self._plugins[BindingPlugin.bind] if plugin.name == name)
        return self._caller.defect(plugin, "bind", ctx, InvalidResult(why))

    def _collect(self, ctx: BindContext) -> Status | None:
        """Add the plugins' annotations and labels to those of the Binding; return the first failure.

        What only one of them can be blamed for is found here, before the Binding: the API server names no plugin.
        """
        present = ((ctx.pod or {}).get("metadata") or {}).get("annotations") or {}
        annotations = Additions(ctx.annotations, partial(addition_errors, present=present))
        labels = Additions(ctx.labels, label_errors)
        for plugin in self._plugins[BindingPlugin.pre_bind]:
            if (status := ctx.prepared.get(plugin.name)) is None:
                continue
            for additions, added in ((annotations, status.annotations), (labels, status.labels)):
                try:
                    additions.add(plugin.name, added or {})
                except InvalidResult as error:
                    return self._caller.defect(plugin, "pre_bind", ctx, error)
        for builtin in self._applying(self._builtins[BuiltinBindingPlugin.binding_annotations], ctx):
            add = partial(annotations.add, builtin.name)
            query = partial(builtin.binding_annotations, self._of_plugin(builtin, ctx))
            failure = self._caller.ask(builtin, "binding_annotations", add, ctx.request, ctx, query)
            if failure is not None:
                return failure
        return None

    async def run_post_bind(self, ctx: BindContext) -> None:
        """Call every plugin that applies after the pod is bound. Errors are counted; the pod stays bound.

        Each plugin has its own budget, so a slow one does not prevent the calls of the others.
        """
        for plugin in self._applying(self._plugins[BindingPlugin.post_bind], ctx):
            call = partial(plugin.post_bind, self._of_plugin(plugin, ctx))
            await self._caller.run(plugin, "post_bind", as_none, plugin.budgets.post_bind_s, ctx, call)

    async def run_rollback(self, ctx: BindContext, why: Status) -> Done | Retriable | Transient:
        """Roll back in reverse order. A failure does not stop the others; Done only if all are Done or Skipped.

        An object that cannot be read is no failure, nor is a plugin that is off: the reasons of the Done name it.

        Called are the plugins that the request records, whether the pod exists or not; all if it records none.
        Transient if every failure is the API server's or the network's. The plugins' in-memory state ends before: it
        describes what is prepared, and an attempt that followed would rely on it.
        """
        _empty(ctx.states)
        try:
            return await self._undo(BindingPlugin.rollback, ctx, lambda plugin: plugin.rollback, why)
        finally:
            _empty(ctx.states)

    async def run_release(self, ctx: BindContext) -> Done | Retriable | Transient:
        """Let the plugins return what a bound pod has held, in reverse order; the result is that of a rollback."""
        return await self._undo(BindingPlugin.release, ctx, lambda plugin: plugin.release)

    async def _undo(
        self,
        point: Callable[..., Any],
        ctx: BindContext,
        method_of: Callable[[BindingPlugin], Callable[..., Awaitable[Status]]],
        *arguments: Status,
    ) -> Done | Retriable | Transient:
        results: list[Status] = []
        for plugin in self._recorded(point, ctx):
            name, budget_s = point.__name__, plugin.budgets.rollback_s
            call = partial(method_of(plugin), self._of_plugin(plugin, ctx), *arguments)
            results.append(await self._caller.run(plugin, name, as_status, budget_s, ctx, call))
        return undone([*results, *self._left_by(ctx.request)])

    def _left_by(self, request: BindRequest) -> list[Status]:
        """Return a Done for each plugin that the request records and that cannot undo anything, with the reason."""
        recorded = sorted(request.effects or ())
        if request.spec is None:
            why = "the request's spec cannot be read, so what it has prepared is not known"
            return [Done((why,), name) for name in recorded]
        why = "is not enabled, so what it has prepared stays"
        return [Done((why,), name) for name in recorded if name not in self._names]

    def _recorded(self, point: Callable[..., Any], ctx: BindContext) -> list[BindingPlugin]:
        """Return the plugins of the point that the request records, in reverse order; all if it records none."""
        effects = ctx.request.effects
        return [plugin for plugin in reversed(self._plugins[point]) if effects is None or plugin.name in effects]

    async def forget(self, key: ObjectKey, states: dict[str, dict[str, Any]]) -> None:
        """Notify the plugins that were called for a request which no longer exists. ``states``: theirs; they end."""
        called = tuple(states)
        states.clear()
        for plugin in self._plugins[BindingPlugin.forget]:
            if plugin.name in called:
                budget_s, call = plugin.budgets.rollback_s, partial(plugin.forget, key)
                await self._caller.run(plugin, "forget", as_none, budget_s, None, call)

    # --- calls ---

    async def _pre_bind(self, plugins: Sequence[BindingPlugin], ctx: BindContext) -> Status:
        waits: list[Waiting] = []
        for plugin in plugins:
            if waits and not plugin.parallel:
                break
            status = await self._pre_bind_one(plugin, ctx)
            if isinstance(status, Waiting):
                waits.append(status)
                if not plugin.parallel:
                    break
            elif not isinstance(status, Done):
                return self._notified(ctx, status)
        return merge_waits(waits) if waits else Status.ok()

    async def _pre_bind_one(self, plugin: BindingPlugin, ctx: BindContext) -> Status:
        call = partial(plugin.pre_bind, self._of_plugin(plugin, ctx))
        status = await self._caller.run(plugin, "pre_bind", as_prepared, plugin.budgets.call_s, ctx, call)
        if isinstance(status, Done) and (status.annotations or status.labels):
            ctx.prepared[plugin.name] = status
        # A plugin with nothing to do may return either.
        return Status.ok() if isinstance(status, Skipped) else status

    def _notified(self, ctx: BindContext, status: Status) -> Status:
        """Return the attempt's result; the plugins that follow its failures have been told of one."""
        if isinstance(status, Failure):
            for plugin in self._applying(self._builtins[BuiltinBindingPlugin.on_failure], ctx):
                query = partial(plugin.on_failure, self._of_plugin(plugin, ctx))
                self._caller.ask(plugin, "on_failure", as_none, ctx.request, ctx, query)
        return status

    def _of_plugin(self, plugin: Plugin, ctx: BindContext) -> BindContext:
        """Return this plugin's own view, made when it is called first, with its own state."""
        state = ctx.states.setdefault(plugin.name, {})
        view = ctx.views.get(plugin.name)
        if view is None or view.state is not state:
            view = ctx.views[plugin.name] = self._view(plugin, ctx, state)
        for entries_of_view, entries in ((view.annotations, ctx.annotations), (view.labels, ctx.labels)):
            entries_of_view.clear()
            entries_of_view.update(entries)
        return view

    def _view(self, plugin: Plugin, ctx: BindContext, state: dict[str, Any]) -> BindContext:
        """Return a plugin's view of the context: with copies of the objects, except for Bowline's own plugins."""
        (request, pod), node = _own(plugin, ctx.request, ctx.pod), ctx.node
        if node is not None and not isinstance(plugin, BuiltinBindingPlugin):
            node = _copied(node)
        return replace(
            ctx,
            request=request,
            pod=pod,
            node=node,
            state=state,
            annotations={},
            labels={},
            views={},
            states={},
        )


def _empty(states: dict[str, dict[str, Any]]) -> None:
    """Replace the plugins' states of a request by empty ones: each that was called is to forget the request."""
    states.update({name: {} for name in states})


def _copied(raw: Object) -> Object:
    """Return a deep copy of a raw object, much faster than copy.deepcopy."""
    copy: Object = orjson.loads(orjson.dumps(raw))
    return copy


def _own(plugin: Plugin, request: BindRequest, pod: Object | None) -> tuple[BindRequest, Object | None]:
    """Return what a plugin receives: copies, so that the cached objects stay as they are, whatever it writes into
    them. Bowline's own plugins write nothing, and share the objects.
    """
    if isinstance(plugin, BuiltinBindingPlugin):
        return request, pod
    return replace(request, raw=_copied(request.raw)), _copied(pod) if pod is not None else None


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
