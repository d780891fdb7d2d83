"""A reconcile that called plugins, as a span ``attempt`` with child spans ``<plugin>.<point>``. Pure.

It covers the whole reconcile, including what is between the plugins: reads, status writes, completion.
"""

from datetime import timedelta

from reconciler.observe.passes import Pass, Step
from shared.api import names
from shared.api.bindrequest import BindRequest
from shared.framework.status import Code
from shared.runtime.tracing import Span

_ERRORS = frozenset((Code.RETRY.value, Code.FATAL.value, Code.TRANSIENT.value))


def traceparent(request: BindRequest) -> str:
    """Return the traceparent of the request, set by its admission or its creator; empty if there is none."""
    value = (request.raw["metadata"].get("annotations") or {}).get(names.TRACEPARENT, "")
    return value if isinstance(value, str) else ""


def attempt_span(over: Pass, seconds: float) -> Span:
    """Return the span of a finished reconcile."""
    return Span(
        "attempt",
        over.began,
        over.began + timedelta(seconds=seconds),
        {
            "k8s.namespace.name": over.key.namespace,
            "bowline.bindrequest": over.key.name,
            "bowline.attempt": over.attempt,
            "bowline.decision": over.decision,
            "bowline.outcome": over.outcome,
        },
        error=over.why if over.outcome in _ERRORS else "",
        parts=tuple(_step_span(over, step) for step in over.steps),
    )


def _step_span(over: Pass, step: Step) -> Span:
    began = over.began + timedelta(milliseconds=step.after_ms)
    error = step.why if step.code in _ERRORS else ""
    ended = began + timedelta(milliseconds=step.ms)
    return Span(f"{step.plugin}.{step.point}", began, ended, {"bowline.code": step.code}, error)
