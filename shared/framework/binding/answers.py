"""Validation of the values that plugins return at each extension point. Pure.

Every check returns the value with its type, or raises ``WrongAnswer``. An unknown value is never treated as a
harmless one: a pre_bind skipped by mistake would bind a pod without its devices. Decision 125.
"""

import inspect
from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import Any

from shared.api.bindrequest import AllocationKind
from shared.framework.binding.handle import Route
from shared.framework.plugin import Preflight
from shared.framework.status import Code, Status

# Codes that on_failure may return. OK and SKIP would report a failure as success.
FAILURES = frozenset({Code.RETRY, Code.FATAL, Code.WAIT, Code.TRANSIENT})
ANSWERS = FAILURES | {Code.OK, Code.SKIP}


class WrongAnswer(TypeError):  # noqa: N818 - the plugin's error, not this package's
    """A plugin returned a value that is invalid at its extension point."""


def awaitable(answer: Any) -> Awaitable[Any]:
    """Check the return value of an asynchronous method."""
    if not inspect.isawaitable(answer):
        raise WrongAnswer(f"returned {_shown(answer)} instead of a coroutine; declare it with `async def`")
    return answer


def status(answer: Any) -> Status:
    """Check the result of pre_bind, bind and rollback."""
    if not isinstance(answer, Status):
        raise _wrong(answer, "a Status")
    return _with_code(answer, ANSWERS)


def failure(answer: Any) -> Status | None:
    """Check the result of on_failure: another failure, or None to keep the present one."""
    if answer is None:
        return None
    if not isinstance(answer, Status):
        raise _wrong(answer, "a Status or None")
    return _with_code(answer, FAILURES)


def preflight(answer: Any) -> Preflight:
    """Check the result of preflight."""
    if not isinstance(answer, Preflight):
        raise _wrong(answer, "RUN, RUN_PARALLEL, SKIP or SKIP_PARALLEL")
    return answer


def annotations(answer: Any) -> Mapping[str, str]:
    """Check the result of binding_annotations."""
    if not isinstance(answer, Mapping):
        raise _wrong(answer, "a mapping of annotations")
    for key, value in answer.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise WrongAnswer(f"returned annotation {key!r}: {value!r}; keys and values must be strings")
    return answer


def demands(answer: Any) -> frozenset[AllocationKind]:
    """Check the result of supported_allocations."""
    found = tuple(answer) if isinstance(answer, Iterable) else (answer,)
    if not all(isinstance(demand, AllocationKind) for demand in found):
        raise _wrong(answer, "a collection of AllocationKind")
    return frozenset(found)


def flag(answer: Any) -> bool:
    """Check the result of has_side_effects."""
    if not isinstance(answer, bool):
        raise _wrong(answer, "True or False")
    return answer


def nothing(answer: Any) -> None:
    """Check the result of post_bind and forget, which must be None."""
    if answer is not None:
        raise _wrong(answer, "nothing")


def routes(answer: Any) -> tuple[Route, ...]:
    """Check the result of routes."""
    if not isinstance(answer, Iterable):
        raise _wrong(answer, "a list of Route")
    listed = tuple(answer)
    for route in listed:
        if not isinstance(route, Route):
            raise _wrong(route, "a list of Route")
        if not isinstance(route.path, str) or not callable(route.content):
            raise WrongAnswer(f"returned {route!r}; path must be a string and content a function")
    return listed


def _with_code(answer: Status, allowed: Collection[Code]) -> Status:
    if answer.code not in allowed:
        expected = ", ".join(code.name for code in Code if code in allowed)
        raise WrongAnswer(f"returned a Status with code {answer.code.name}; expected one of {expected}")
    return answer


def _wrong(answer: Any, expected: str) -> WrongAnswer:
    if inspect.iscoroutine(answer):
        answer.close()
        return WrongAnswer("returned a coroutine; this method must not be `async def`")
    return WrongAnswer(f"returned {_shown(answer)} instead of {expected}")


def _shown(answer: Any) -> str:
    return "None" if answer is None else f"a {type(answer).__name__}"
