"""One call of one plugin at one extension point. Every failure in it becomes a value here.

An exception is a retriable failure, a result of the wrong type a terminal one; both name the plugin and the extension
point, are counted and logged. An error of the API server or of the network is TRANSIENT instead, and so is a call
that has spent its time waiting for the API server. No exception of a plugin leaves this module, except the
cancellation of the attempt itself.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shared.api.meta import ObjectKey
from shared.framework.binding.answers import WrongAnswer, awaitable
from shared.framework.binding.context import BindContext
from shared.framework.plugin import Plugin
from shared.framework.status import Code, Status
from shared.kube.accounting import Budget
from shared.kube.errors import InfrastructureError
from shared.runtime.tasks import raise_foreign_cancellation

T = TypeVar("T")

# The result of a call that was cancelled together with its attempt.
_CANCELLED = Status(Code.CANCELLED)


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure of a synchronous call that returned no usable value."""

    status: Status


class Observer(Protocol):
    """Notified of every asynchronous call of a plugin: for metrics, the journal, the overdue monitor."""

    def call_began(self, plugin: str, point: str, ctx: BindContext) -> None: ...

    def call_ended(self, plugin: str, point: str, ctx: BindContext, status: Status, seconds: float) -> None: ...

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None: ...

    def forgotten(self, key: ObjectKey) -> None: ...


class PluginCalls:
    """Calls plugins and reports their errors to the observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def answer(
        self,
        plugin: Plugin,
        point: str,
        ctx: BindContext | None,
        method: Callable[[], Any],
        check: Callable[[Any], T],
    ) -> T | Failed:
        """Call a synchronous method. Returns its checked result, or ``Failed`` after an exception or an invalid
        result.
        """
        try:
            return check(method())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes a Status; _failed() reports it
            return Failed(self._failed(plugin, point, ctx, error))

    async def status(
        self,
        plugin: Plugin,
        point: str,
        ctx: BindContext,
        budget_s: float,
        method: Callable[[], Awaitable[Any]],
        check: Callable[[Any], Status | None],
    ) -> Status:
        """Call an asynchronous method within its budget.

        Returns its checked result, OK for None, or the failure. The observer is notified of start and end, also on
        cancellation.
        """
        self._observer.call_began(plugin.name, point, ctx)
        started = time.monotonic()
        status = _CANCELLED
        try:
            status = await self.quiet(plugin, point, ctx, budget_s, method, check)
        finally:
            self._observer.call_ended(plugin.name, point, ctx, status, time.monotonic() - started)
        return status

    async def quiet(
        self,
        plugin: Plugin,
        point: str,
        ctx: BindContext | None,
        budget_s: float,
        method: Callable[[], Awaitable[Any]],
        check: Callable[[Any], Status | None],
    ) -> Status:
        """Like ``status``, for a call that belongs to no attempt: only its errors are reported."""
        budget = Budget(budget_s)
        try:
            async with budget:
                status = check(await raise_foreign_cancellation(awaitable(method())))
        except TimeoutError as error:
            if not budget.is_out:
                return self._failed(plugin, point, ctx, error)
            if budget.is_api_time:
                why = f"{point} waited {budget_s:g} s for the API server"
                return Status(Code.TRANSIENT, (why,), plugin.name)
            return Status.retry(f"{point} took longer than {budget_s:g} s").from_plugin(plugin.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes a Status; _failed() reports it
            return self._failed(plugin, point, ctx, error)
        if status is None or status.code is Code.OK:
            return Status.ok()
        return status.from_plugin(plugin.name)

    def _failed(self, plugin: Plugin, point: str, ctx: BindContext | None, error: Exception | SystemExit) -> Status:
        if isinstance(error, InfrastructureError):
            return Status(Code.TRANSIENT, (str(error),), plugin.name, retry_after=error.retry_after)
        if isinstance(error, SystemExit):
            # A plugin that exits the process would end the work of all others.
            error = RuntimeError(f"called sys.exit({error.code!r})")
        self._observer.plugin_raised(plugin.name, point, ctx, error)
        if isinstance(error, WrongAnswer):
            return Status.fatal(f"{point} {error}; this is a defect of the plugin").from_plugin(plugin.name)
        return Status.retry(f"{point} raised {type(error).__name__}: {error}").from_plugin(plugin.name)
