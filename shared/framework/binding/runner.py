"""Calls the plugins' binding methods in order and turns whatever happens into one Status.

An extension point is the list of the plugins that override it, in configured order. The Runner owns what a plugin
must not decide: which neighbours run at the same time, what an exception means, how long a call may take. It keeps
each plugin's in-memory state by request UID, so that a pass after WAIT or RETRY finds what an earlier one left.
It writes nothing and decides nothing about the request: that is decide and settle's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from shared.api.bindrequest import BindRequest, Demand
from shared.api.meta import ObjectKey, ObjectUID
from shared.framework.binding.context import BindContext
from shared.framework.binding.groups import Group, merge_failures, merge_waits, pre_bind_groups
from shared.framework.plugin import SKIP, Plugin, Preflight, overrides
from shared.framework.status import Code, Reason, Status
from shared.kube.errors import InfrastructureError
from shared.runtime.tasks import all_done, to_its_end

T = TypeVar("T")

# What is told of a call that was ended from outside.
_CANCELLED = Status(Code.CANCELLED)


class Observer(Protocol):
    """Told of every asynchronous call of a plugin: for metrics, the journal, the overdue monitor."""

    def call_began(self, plugin: str, point: str, c: BindContext) -> None: ...

    def call_ended(self, plugin: str, point: str, c: BindContext, status: Status, seconds: float) -> None: ...

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None: ...

    def forgotten(self, key: ObjectKey) -> None: ...


@dataclass(frozen=True, slots=True)
class Budgets:
    """How long plugins may take."""

    call_s: float = 60.0  # one pre_bind or bind; whoever needs longer says WAIT
    post_bind_s: float = 5.0  # all post_bind together: nothing that follows a bind may hold it up
    rollback_s: float = 10.0  # one plugin's rollback; it is repeated until it says OK


@dataclass(slots=True)
class _States:
    """In-memory state of one request, by plugin."""

    key: ObjectKey
    by_plugin: dict[str, dict[str, Any]] = field(default_factory=dict)


class Runner:
    """Runs the enabled plugins' binding half."""

    def __init__(self, plugins: Sequence[Plugin], observer: Observer, budgets: Budgets | None = None) -> None:
        self._plugins = tuple(plugins)
        self._observer = observer
        self._budgets = budgets or Budgets()
        self._states: dict[ObjectUID, _States] = {}
        self._pre_bind = self._overriding("pre_bind")
        self._before_bind = self._overriding("before_bind")
        self._bind = self._overriding("bind")
        self._post_bind = self._overriding("post_bind")
        self._rollback = self._overriding("rollback")[::-1]
        self._forget = self._overriding("forget")
        self._on_failure = self._overriding("on_failure")

    # --- pure questions ---

    def served(self, request: BindRequest) -> frozenset[Demand]:
        """Return the demands of the request that some enabled plugin fulfils."""
        return frozenset(demand for plugin in self._plugins for demand in plugin.serves(request))

    def leaves_effects(self, request: BindRequest) -> bool:
        """Return whether an attempt may leave something that only rollback removes."""
        return any(plugin.leaves_effects(request) for plugin in self._plugins)

    @property
    def remembered(self) -> int:
        """How many requests have in-memory state."""
        return len(self._states)

    # --- extension points ---

    def preflight(self, c: BindContext) -> tuple[Group, ...] | Status:
        """Return whose pre_bind is to run, by group; for most pods nobody's. A Status is a plugin's failure."""
        answers = []
        for plugin in self._pre_bind:
            answer = self._preflight(plugin, c)
            if isinstance(answer, Status):
                return self._reclassified(c, answer)
            answers.append((plugin, answer))
        return pre_bind_groups(answers)

    async def run_pre_bind(self, c: BindContext, groups: Sequence[Group]) -> Status:
        """Run every group in turn. The first failure cancels its siblings and ends it; a WAIT lets them finish."""
        for group in groups:
            status = await self._run_group(group, c)
            if status.code is not Code.OK:
                return self._reclassified(c, status)
        return Status.ok()

    async def run_bind(self, c: BindContext) -> Status:
        """Ask the bind plugins in order; the first that does not SKIP decides. Nobody is a failure of its own."""
        for plugin in self._before_bind:
            added = self._call_sync(plugin, "before_bind", c)
            if isinstance(added, Status):
                return self._reclassified(c, added)
            c.annotations.update(added)
        for plugin in self._bind:
            status = await self._call(plugin, "bind", c, self._budgets.call_s, plugin.bind)
            if status.code is not Code.SKIP:
                return self._reclassified(c, status)
        names = ", ".join(plugin.name for plugin in self._bind) or "none is enabled"
        why = f"no bind plugin took the pod (asked: {names}); enable default_binder or one that binds this pod"
        return Status.fatal(why, Reason.NO_PLUGIN)

    async def run_post_bind(self, c: BindContext) -> None:
        """Tell every plugin that the pod is bound. What they raise is counted; the pod stays bound."""
        deadline = time.monotonic() + self._budgets.post_bind_s

        for plugin in self._post_bind:

            async def done(own: BindContext, plugin: Plugin = plugin) -> Status:
                await plugin.post_bind(own)
                return Status.ok()

            await self._call(plugin, "post_bind", c, max(0.0, deadline - time.monotonic()), done)

    async def run_rollback(self, c: BindContext, why: Status) -> Status:
        """Undo in reverse order. One that fails does not stop the others; OK only when all said so.

        INFRA if nothing but the API server's own trouble was in the way.
        """
        failures = []
        for plugin in self._rollback:

            async def undo(own: BindContext, plugin: Plugin = plugin) -> Status:
                return await plugin.rollback(own, why)

            status = await self._call(plugin, "rollback", c, self._budgets.rollback_s, undo)
            if status.code not in (Code.OK, Code.SKIP):
                failures.append(status)
        return merge_failures(failures) if failures else Status.ok()

    async def forget(self, key: ObjectKey, uid: ObjectUID) -> None:
        """Drop all in-memory state of a request that has left the system."""
        self._states.pop(uid, None)
        self._observer.forgotten(key)
        for plugin in self._forget:
            try:
                async with asyncio.timeout(self._budgets.rollback_s):
                    await to_its_end(plugin.forget(key))
            except Exception as error:  # noqa: BLE001 - reported; every plugin must hear of it
                self._observer.plugin_raised(plugin.name, "forget", None, error)

    # --- one plugin ---

    def _overriding(self, method: str) -> tuple[Plugin, ...]:
        return tuple(plugin for plugin in self._plugins if overrides(plugin, method))

    def _own(self, plugin: Plugin, c: BindContext) -> BindContext:
        """Return the context as this plugin may see it: with its own state and name."""
        states = self._states.get(c.request.uid)
        if states is None:
            states = self._states[c.request.uid] = _States(c.request.key)
        return c.with_state(states.by_plugin.setdefault(plugin.name, {}))

    def _preflight(self, plugin: Plugin, c: BindContext) -> Preflight | Status:
        answer = self._call_sync(plugin, "preflight", c)
        return answer if isinstance(answer, Preflight | Status) else SKIP

    def _call_sync(self, plugin: Plugin, point: str, c: BindContext) -> Any:
        try:
            return getattr(plugin, point)(self._own(plugin, c))
        except Exception as error:  # noqa: BLE001 - becomes a Status, reported by raised()
            return self._raised(plugin, point, c, error)

    async def _run_group(self, group: Group, c: BindContext) -> Status:
        if len(group.plugins) == 1:
            return await self._pre_bind_one(group.plugins[0], c)
        tasks = [
            asyncio.create_task(self._pre_bind_one(plugin, c), name=f"pre_bind {plugin.name}")
            for plugin in group.plugins
        ]
        failure: Status | None = None
        waits = []
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                answers = [task.result() for task in tasks if task in done and not task.cancelled()]
                waits += [status for status in answers if status.code is Code.WAIT]
                failed = [status for status in answers if status.code not in (Code.OK, Code.WAIT)]
                if failed and failure is None:
                    failure = failed[0]
                    for task in pending:
                        task.cancel()
        finally:
            # Cancelled from outside: the siblings must not outlive the attempt.
            for task in pending:
                task.cancel()
            # However often it is cancelled: a write that a sibling has begun is rolled back only after it has ended.
            await all_done(*pending)
        return failure or (merge_waits(waits) if waits else Status.ok())

    async def _pre_bind_one(self, plugin: Plugin, c: BindContext) -> Status:
        status = await self._call(plugin, "pre_bind", c, self._budgets.call_s, plugin.pre_bind)
        # A plugin that finds nothing to do says so either way.
        return Status.ok() if status.code is Code.SKIP else status

    async def _call(
        self,
        plugin: Plugin,
        point: str,
        c: BindContext,
        budget_s: float,
        method: Callable[[BindContext], Awaitable[Status]],
    ) -> Status:
        self._observer.call_began(plugin.name, point, c)
        started = time.monotonic()
        status = _CANCELLED
        try:
            status = await self._answer(plugin, point, c, budget_s, method)
        finally:
            self._observer.call_ended(plugin.name, point, c, status, time.monotonic() - started)
        return status

    async def _answer(
        self,
        plugin: Plugin,
        point: str,
        c: BindContext,
        budget_s: float,
        method: Callable[[BindContext], Awaitable[Status]],
    ) -> Status:
        deadline = asyncio.timeout(budget_s)
        try:
            async with deadline:
                status = await to_its_end(method(self._own(plugin, c)))
        except TimeoutError as error:
            if not deadline.expired():
                return self._raised(plugin, point, c, error)
            return Status.retry(f"{point} took longer than {budget_s:g} s").from_plugin(plugin.name)
        except Exception as error:  # noqa: BLE001 - becomes a Status, reported by raised()
            return self._raised(plugin, point, c, error)
        if not isinstance(status, Status):
            why = f"{point} returned {type(status).__name__} instead of a Status; this is a fault of the plugin"
            return Status.fatal(why).from_plugin(plugin.name)
        return status.from_plugin(plugin.name)

    def _raised(self, plugin: Plugin, point: str, c: BindContext, error: Exception) -> Status:
        if isinstance(error, InfrastructureError):
            return Status(Code.INFRA, (str(error),), plugin.name, retry_after=error.retry_after)
        self._observer.plugin_raised(plugin.name, point, c, error)
        return Status.retry(f"{point} raised {type(error).__name__}: {error}").from_plugin(plugin.name)

    def _reclassified(self, c: BindContext, status: Status) -> Status:
        if status.code not in (Code.RETRY, Code.FATAL):
            return status
        for plugin in self._on_failure:
            try:
                changed = plugin.on_failure(self._own(plugin, c), status)
            except Exception as error:  # noqa: BLE001 - reported; the failure stands as it is
                self._observer.plugin_raised(plugin.name, "on_failure", c, error)
                continue
            status = changed.from_plugin(status.plugin) if changed is not None else status
        return status


def order_by_point(plugins: Sequence[Plugin]) -> Mapping[str, tuple[str, ...]]:
    """Return which plugins act at which binding point, in order; for logs and debug pages."""
    points = ("pre_bind", "before_bind", "bind", "post_bind", "rollback", "on_failure", "forget")
    table = {point: tuple(p.name for p in plugins if overrides(p, point)) for point in points}
    return {**table, "rollback": table["rollback"][::-1]}
