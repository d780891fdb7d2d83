"""What a plugin's binding method may return, checked. Pure.

Each function returns a plugin's result with its type, or raises ``InvalidResult``. An unknown value is never treated
as a harmless one: a pre_bind skipped by mistake would bind a pod without its devices. Decision 125.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from bowline.api.bindrequest import AllocationKind
from bowline.framework.plugin_status import Code, Status
from bowline.framework.waiting import UNLIMITED

# Codes that on_failure may return. OK and SKIP would report a failure as success.
FAILURES = frozenset({Code.RETRY, Code.FATAL, Code.WAIT, Code.TRANSIENT})
# A repaired plugin comes with a new process; the poll finds a repaired right, or what was no defect.
_DEFECT_POLL = timedelta(seconds=30)
RESULTS = FAILURES | {Code.OK, Code.SKIP}


class InvalidResult(TypeError):  # noqa: N818 - the plugin's error, not this package's
    """A plugin returned a value that is invalid at its extension point."""


def as_status(result: Any) -> Status:
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


def as_terminal(result: Any) -> Status | None:
    """Check the result of on_terminal_failure: a FATAL, or None to keep the present one."""
    if result is None:
        return None
    if not isinstance(result, Status):
        raise _invalid(result, "a Status or None")
    return _with_code(result, frozenset({Code.FATAL}))


def as_metadata(result: Any) -> Mapping[str, str]:
    if not isinstance(result, Mapping):
        raise _invalid(result, "a mapping of keys to values")
    for key, value in result.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidResult(f"returned {key!r}: {value!r}; keys and values must be strings")
    return result


def as_demands(result: Any) -> frozenset[AllocationKind]:
    demands = tuple(result) if isinstance(result, Iterable) else (result,)
    if not all(isinstance(demand, AllocationKind) for demand in demands):
        raise _invalid(result, "a collection of AllocationKind")
    return frozenset(demands)


def as_flag(result: Any) -> bool:
    if not isinstance(result, bool):
        raise _invalid(result, "True or False")
    return result


def as_none(result: Any) -> None:
    """Check the result of post_bind and forget, which must be None."""
    if result is not None:
        raise _invalid(result, "nothing")


def defect(plugin: str, what: str) -> Status:
    """Return the Status for a defect of a plugin, or of what its operator has granted it: a wait without a limit.

    It says nothing about the pod or the node, so it uses no attempt, and no other decision helps. Decision 280.
    """
    why = f"{what}; the plugin is defective: repair or disable it, then the request continues"
    return Status.wait(why, retry_after=_DEFECT_POLL, timeout=UNLIMITED).from_plugin(plugin)


def _with_code(result: Status, codes: Collection[Code]) -> Status:
    if result.code not in codes:
        expected = ", ".join(code.name for code in Code if code in codes)
        raise InvalidResult(f"returned a Status with code {result.code.name}; expected one of {expected}")
    return result


def _invalid(result: Any, expected: str) -> InvalidResult:
    if inspect.iscoroutine(result):
        result.close()
    text = "None" if result is None else f"a {type(result).__name__}"
    return InvalidResult(f"returned {text} instead of {expected}")
