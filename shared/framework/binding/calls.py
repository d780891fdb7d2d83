"""One call of one plugin at one extension point: what it may return, and every failure as a value.

The ``as_*`` functions return a plugin's result with its type, or raise ``InvalidResult``. An unknown value is never
treated as a harmless one: a pre_bind skipped by mistake would bind a pod without its devices. Decision 125.

An exception is a retriable failure, an invalid result a terminal one; both name the plugin and the extension point,
are counted and logged. An error of the API server or of the network is TRANSIENT instead, and so is a call
that has spent its time waiting for the API server. No exception of a plugin leaves this module, except the
cancellation of the attempt itself.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shared.api.bindrequest import AllocationKind
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext
from shared.framework.binding.handle import Route
from shared.framework.plugin import Plugin, Preflight
from shared.framework.status import Code, Status
from shared.kube.accounting import Budget
from shared.kube.errors import InfrastructureError
from shared.runtime.tasks import raise_foreign_cancellation

T = TypeVar("T")

# The result of a call that was cancelled together with its attempt.
_CANCELLED = Status(Code.CANCELLED)
# Codes that on_failure may return. OK and SKIP would report a failure as success.
FAILURES = frozenset({Code.RETRY, Code.FATAL, Code.WAIT, Code.TRANSIENT})
RESULTS = FAILURES | {Code.OK, Code.SKIP}


class InvalidResult(TypeError):  # noqa: N818 - the plugin's error, not this package's
    """A plugin returned a value that is invalid at its extension point."""


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

    def call(
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

    async def run(
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
            status = await self.run_unobserved(plugin, point, ctx, budget_s, method, check)
        finally:
            self._observer.call_ended(plugin.name, point, ctx, status, time.monotonic() - started)
        return status

    async def run_unobserved(
        self,
        plugin: Plugin,
        point: str,
        ctx: BindContext | None,
        budget_s: float,
        method: Callable[[], Awaitable[Any]],
        check: Callable[[Any], Status | None],
    ) -> Status:
        """Like ``run``, for a call that belongs to no attempt: only its errors are reported."""
        budget = Budget(budget_s)
        try:
            async with budget:
                status = check(await raise_foreign_cancellation(as_awaitable(method())))
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
        if isinstance(error, InvalidResult):
            return Status.fatal(f"{point} {error}; this is a defect of the plugin").from_plugin(plugin.name)
        return Status.retry(f"{point} raised {type(error).__name__}: {error}").from_plugin(plugin.name)


def as_awaitable(result: Any) -> Awaitable[Any]:
    """Check the return value of an asynchronous method."""
    if not inspect.isawaitable(result):
        raise InvalidResult(f"returned {_type_of(result)} instead of a coroutine; declare it with `async def`")
    return result


def as_status(result: Any) -> Status:
    """Check the result of pre_bind, bind and rollback."""
    if not isinstance(result, Status):
        raise _invalid(result, "a Status")
    return _with_code(result, RESULTS)


def as_failure(result: Any) -> Status | None:
    """Check the result of on_failure: another failure, or None to keep the present one."""
    if result is None:
        return None
    if not isinstance(result, Status):
        raise _invalid(result, "a Status or None")
    return _with_code(result, FAILURES)


def as_preflight(result: Any) -> Preflight:
    """Check the result of preflight."""
    if not isinstance(result, Preflight):
        raise _invalid(result, "RUN, RUN_PARALLEL, SKIP or SKIP_PARALLEL")
    return result


def as_annotations(result: Any) -> Mapping[str, str]:
    """Check the result of binding_annotations."""
    if not isinstance(result, Mapping):
        raise _invalid(result, "a mapping of annotations")
    for key, value in result.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidResult(f"returned annotation {key!r}: {value!r}; keys and values must be strings")
    return result


def as_demands(result: Any) -> frozenset[AllocationKind]:
    """Check the result of supported_allocations."""
    found = tuple(result) if isinstance(result, Iterable) else (result,)
    if not all(isinstance(demand, AllocationKind) for demand in found):
        raise _invalid(result, "a collection of AllocationKind")
    return frozenset(found)


def as_flag(result: Any) -> bool:
    """Check the result of has_side_effects."""
    if not isinstance(result, bool):
        raise _invalid(result, "True or False")
    return result


def as_none(result: Any) -> None:
    """Check the result of post_bind and forget, which must be None."""
    if result is not None:
        raise _invalid(result, "nothing")


def as_routes(result: Any) -> tuple[Route, ...]:
    """Check the result of routes."""
    if not isinstance(result, Iterable):
        raise _invalid(result, "a list of Route")
    listed = tuple(result)
    for route in listed:
        if not isinstance(route, Route):
            raise _invalid(route, "a list of Route")
        if not isinstance(route.path, str) or not callable(route.content):
            raise InvalidResult(f"returned {route!r}; path must be a string and content a function")
    return listed


def _with_code(result: Status, allowed: Collection[Code]) -> Status:
    if result.code not in allowed:
        expected = ", ".join(code.name for code in Code if code in allowed)
        raise InvalidResult(f"returned a Status with code {result.code.name}; expected one of {expected}")
    return result


def _invalid(result: Any, expected: str) -> InvalidResult:
    if inspect.iscoroutine(result):
        result.close()
        return InvalidResult("returned a coroutine; this method must not be `async def`")
    return InvalidResult(f"returned {_type_of(result)} instead of {expected}")


def _type_of(result: Any) -> str:
    return "None" if result is None else f"a {type(result).__name__}"
