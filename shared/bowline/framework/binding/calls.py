"""One call of one plugin's binding method: its limit of time, the check of its result, and the Status of its failure.

An unknown result is never treated as a harmless one: a pre_bind skipped by mistake would bind a pod without its
devices. An exception, an invalid result and an exhausted budget are a wait for the plugin's repair; they name the
plugin and the extension point, are counted and logged. An error of the API server or of the network is Transient
instead, and so is a call that has spent its time waiting for the API server. Nothing that a plugin raises leaves this
module, except the cancellation of the attempt itself. Which plugins are called, and what a result means for the
others, is decided in ``runner``. Decision 280.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeGuard, TypeVar

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.framework.binding.post import denied_status, not_stored_status
from bowline.framework.interface.access import is_declared
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin
from bowline.framework.interface.status import (
    DEFECT_POLL,
    UNLIMITED,
    Cancelled,
    Done,
    Fatal,
    Retriable,
    Skipped,
    Status,
    Transient,
    Waiting,
)
from bowline.framework.reason import Reason
from bowline.kube.accounting import Budget
from bowline.kube.calls import Call, Permit, limited_to
from bowline.kube.denial import Denial
from bowline.kube.errors import (
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    InfrastructureError,
    NotStoredError,
    UndeclaredWriteError,
    Unreadable,
)
from bowline.runtime.metrics import Durations
from bowline.runtime.tasks import raise_foreign_cancellation

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Status)
T = TypeVar("T")

_RESULTS = (Done, Skipped, Retriable, Fatal, Waiting, Transient)
# Unreadable objects do not keep a request there.
_UNDOING = ("rollback", "release")
_WRITING = ("pre_bind", *_UNDOING)
# The result of a call that was cancelled together with its attempt.
_CANCELLED: Status = Cancelled()
_ABANDONED = "ignores its cancellation: its task continues without an attempt, and may still have effects"


class InvalidResult(TypeError):  # noqa: N818 - the plugin's error, not this package's
    """What a plugin returned, or how its call ended, is invalid at its extension point."""


@dataclass(frozen=True, slots=True)
class PluginCall:
    """A plugin's call; ``key`` and ``uid`` of its request, if it belongs to an attempt. ``since``: monotonic."""

    plugin: str
    point: str
    key: ObjectKey | None
    uid: ObjectUID
    since: float

    @property
    def fields(self) -> Mapping[str, str]:
        """The request, for a log line."""
        return {"bindRequest": str(self.key)} if self.key is not None else {}


class Observer(Protocol):
    """Notified of the errors of plugins: for metrics and logs."""

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        """A call has raised an error, or returned an invalid result."""


class PluginCaller:
    """Calls plugins. ``monotonic`` returns seconds that never decrease. ``durations``: by plugin, point and code."""

    def __init__(
        self,
        observer: Observer,
        monotonic: Callable[[], float] = time.monotonic,
        durations: Durations | None = None,
    ) -> None:
        self._observer = observer
        self._durations = durations
        self._monotonic = monotonic
        # The call that each task is in, and the synchronous one that is being executed.
        self._calls: dict[asyncio.Task[Any] | None, PluginCall] = {}
        self._query: tuple[str, str, BindRequest] | None = None

    @property
    def in_progress(self) -> Collection[PluginCall]:
        """The calls in progress, also those that were abandoned and have not ended."""
        return self._calls.values()

    def current(self, loop: asyncio.AbstractEventLoop) -> PluginCall | None:
        """Return the call that the event loop is executing. May be called from another thread."""
        query = self._query
        if query is not None:
            plugin, point, request = query
            return PluginCall(plugin, point, request.key, request.uid, self._monotonic())
        return self._calls.get(asyncio.current_task(loop))

    def ask(
        self,
        plugin: Plugin,
        point: str,
        check: Callable[[Any], T],
        request: BindRequest,
        ctx: BindContext | None,
        query: Callable[[], Any],
    ) -> T | Status:
        """Call a synchronous method. Returns its checked result, or the failure: an exception or an invalid result.

        ``ctx``: None outside of an attempt.
        """
        self._query = (plugin.name, point, request)
        try:
            return check(query())
        except BaseException as error:  # noqa: BLE001 - becomes a Status; _failure_status() reports it
            return self._failure_status(plugin, point, ctx, _as_exception(error))
        finally:
            self._query = None

    def defect(self, plugin: Plugin, point: str, ctx: BindContext, error: InvalidResult) -> Status:
        """Report a defect that shows after the call, and return its Status."""
        return self._failure_status(plugin, point, ctx, error)

    async def run(
        self,
        plugin: Plugin,
        point: str,
        check: Callable[[Any], Status | None],
        budget_s: float,
        ctx: BindContext | None,
        call: Callable[[], Awaitable[Any]],
    ) -> Status:
        """Call an asynchronous method within its budget. ``ctx``: None outside of an attempt.

        Returns its checked result, OK for None, or the failure. Its duration is recorded, also on cancellation.
        """
        since, status, budget = self._monotonic(), _CANCELLED, Budget(budget_s)
        in_task = self._in_task(plugin, point, ctx, call)
        abandoned = partial(self._observer.plugin_raised, plugin.name, point, ctx, RuntimeError(_ABANDONED))
        try:
            running = budget.run(in_task, f"{plugin.name}.{point}", abandoned)
            result = check(await raise_foreign_cancellation(running))
            status = result.from_plugin(plugin.name) if result is not None else Status.ok()
        except Exception as error:  # noqa: BLE001 - becomes a Status; _failure_status() reports it
            is_late = isinstance(error, TimeoutError) and budget.is_out
            if is_late and budget.is_api_time:
                status = Transient((f"{point} waited {budget_s:g} s for the API server",), plugin.name)
            else:
                late = f"took longer than {budget_s:g} s; a call that needs longer returns Status.wait"
                status = self._failure_status(plugin, point, ctx, InvalidResult(late) if is_late else error)
        finally:
            if self._durations is not None:
                self._durations.observe(self._monotonic() - since, plugin.name, point, status.code)
        return status

    async def _in_task(
        self, plugin: Plugin, point: str, ctx: BindContext | None, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call an asynchronous method in the present task. What is no Exception would end a worker or the process."""
        task, request = asyncio.current_task(), ctx.request if ctx is not None else None
        key, uid = (request.key, request.uid) if request is not None else (None, ObjectUID(""))
        self._calls[task] = PluginCall(plugin.name, point, key, uid, self._monotonic())
        try:
            with limited_to(permit_of(plugin)):
                return await call()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise _as_exception(error) from error
        finally:
            del self._calls[task]

    def _failure_status(self, plugin: Plugin, point: str, ctx: BindContext | None, error: Exception) -> Status:
        answer = _answer_of(plugin, point, error)
        if answer is not None:
            return answer.from_plugin(plugin.name)
        if isinstance(error, Unreadable):
            if point in _UNDOING:
                request = ctx.request.key if ctx is not None else ""
                # It stays as it is until somebody repairs or deletes it; the request must not wait for that.
                fields = {"plugin": plugin.name, "point": point, "request": str(request), "why": error.message}
                log.warning("not undone on an object that is not read", extra=fields)
                return Done((error.message,), plugin.name)
            return Status.fatal(f"{point}: {error.message}", Reason.INVALID).from_plugin(plugin.name)
        denial = denied_status(error.message) if _is_denial(error) else None
        # A policy or a namespace that ends denies the object of this request: no mistake of the plugin. A right is
        # missing for all requests.
        is_right_missing = isinstance(denial, Fatal) and denial.reason is Reason.RBAC_MISSING
        if denial is not None and not is_right_missing:
            return denial.from_plugin(plugin.name)
        self._observer.plugin_raised(plugin.name, point, ctx, error)
        what = str(error) if isinstance(error, InvalidResult) else f"raised {type(error).__name__}: {error}"
        return defect(plugin.name, f"{point} {denial.message if denial is not None else what}")


def permit_of(plugin: Plugin) -> Permit | None:
    """Return the limit of the plugin's writes; None for a built-in one, and where no policy limits the account.

    A policy does not know which plugin sends a write, so each is limited to those that its own class declares.
    """
    if not isinstance(plugin, BindingPlugin) or isinstance(plugin, BuiltinBindingPlugin):
        return None
    return partial(_require_declared, plugin) if plugin.settings.granted_plugins is not None else None


def _require_declared(plugin: BindingPlugin, call: Call) -> None:
    (namespace, name), arguments = call.key, plugin.args.model_dump()
    if not is_declared(plugin.access, arguments, call.verb, call.resource.group, call.label, namespace, name):
        raise UndeclaredWriteError(
            f"plugin {plugin.name} may not {call.write}: its `access` does not declare it; add a rule, and install "
            "the chart with what `bowline plugin access` prints"
        )


def _is_denial(error: Exception) -> TypeGuard[ApiError]:
    """Return whether a right, a policy or a webhook denies the call; the last two with any code, by default 422."""
    if not isinstance(error, ApiError):
        return False
    denial = Denial.of(error.message)
    return isinstance(error, Forbidden) or bool(denial.policy or denial.webhook)


def _answer_of(plugin: Plugin, point: str, error: Exception) -> Status | None:
    """Return what an error of the API server means that is no defect of the plugin; None for every other one.

    A built-in plugin leaves each decision to this that it has no other answer to.
    """
    if isinstance(error, InfrastructureError):
        return Transient((str(error),), retry_after=error.retry_after)
    if isinstance(error, NotStoredError):
        return not_stored_status(error)
    is_left_to_this = isinstance(plugin, BuiltinBindingPlugin) and point in _WRITING
    if not is_left_to_this or not isinstance(error, ApiError) or isinstance(error, Unreadable):
        return None
    if point in _UNDOING:
        return Status.retry(error.message)
    return Transient((error.message,)) if isinstance(error, Conflict | Expired) else denied_status(error.message)


def _as_exception(error: BaseException) -> Exception:
    """Return what a plugin has raised as an exception: anything else would end the work of all others."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit):
        return InvalidResult(f"called sys.exit({error.code!r})")
    return InvalidResult(f"raised {type(error).__name__}: {error}")


def as_status(result: Any) -> Status:
    status = as_prepared(result)
    if isinstance(status, Done) and (status.annotations is not None or status.labels is not None):
        raise InvalidResult("returned annotations or labels; only the OK of pre_bind may have them")
    return status


def as_prepared(result: Any) -> Status:
    """Check the result of pre_bind: if it is Done, it may have annotations and labels."""
    return _one_of(_RESULTS, result)


def as_flag(result: Any) -> bool:
    if not isinstance(result, bool):
        raise invalid(result, "True or False")
    return result


def as_none(result: Any) -> None:
    """Check the result of post_bind, on_failure and forget, which must be None."""
    if result is not None:
        raise invalid(result, "nothing")


def defect(plugin: str, what: str) -> Status:
    """Return the Status for a defect of a plugin, or of what its operator has granted it: a wait without a limit.

    It says nothing about the pod or the node, so it uses no attempt, and no other decision helps. Decision 280.
    """
    why = f"{what}; the plugin is defective: repair or disable it, then the request continues"
    return Status.wait(why, retry_after=DEFECT_POLL, timeout=UNLIMITED).from_plugin(plugin)


def _one_of(kinds: tuple[type[S], ...], result: Any) -> S:
    if not isinstance(result, kinds):
        raise invalid(result, "a Status that is " + " or ".join(kind.__name__ for kind in kinds))
    return result


def invalid(result: Any, expected: str) -> InvalidResult:
    """Return the error of a result that is something else than expected."""
    if inspect.iscoroutine(result):
        result.close()
    text = "None" if result is None else f"a {type(result).__name__}"
    return InvalidResult(f"returned {text} instead of {expected}")
