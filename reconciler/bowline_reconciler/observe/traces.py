"""A reconcile that called plugins, as a span ``attempt`` with child spans ``<plugin>.<point>``.

It covers the whole reconcile, including what is between the plugins: reads, status writes, completion. Spans are
recorded when the reconcile has ended.
"""

from datetime import timedelta

from opentelemetry.context import Context
from opentelemetry.trace import Tracer, set_span_in_context

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.framework.plugin_status import Code
from bowline.runtime.tracing import nanoseconds, parent_context, set_error
from bowline_reconciler.observe.reconciles import ReconcileInProgress

_ERRORS = frozenset((Code.RETRY.value, Code.FATAL.value, Code.TRANSIENT.value))


def traceparent(request: BindRequest) -> str:
    """Return the traceparent of the request, set by its admission or its creator; empty if there is none."""
    value = (request.raw["metadata"].get("annotations") or {}).get(names.TRACEPARENT, "")
    return value if isinstance(value, str) else ""


def record_attempt(tracer: Tracer, over: ReconcileInProgress, seconds: float) -> None:
    """Record a finished reconcile that took ``seconds``, if it called plugins."""
    if not over.steps:
        return
    span = tracer.start_span("attempt", parent_context(over.trace), start_time=nanoseconds(over.began))
    if not span.is_recording():
        return
    span.set_attributes(
        {
            "k8s.namespace.name": over.key.namespace,
            "bowline.bindrequest": over.key.name,
            "bowline.attempt": over.attempt,
            "bowline.decision": over.decision,
            "bowline.outcome": over.outcome,
        }
    )
    set_error(span, over.why if over.outcome in _ERRORS else "")
    inner = set_span_in_context(span, Context())
    for step in over.steps:
        began = over.began + timedelta(milliseconds=step.after_ms)
        child = tracer.start_span(f"{step.plugin}.{step.point}", inner, start_time=nanoseconds(began))
        child.set_attribute("bowline.code", step.code)
        set_error(child, step.why if step.code in _ERRORS else "")
        child.end(nanoseconds(began + timedelta(milliseconds=step.ms)))
    span.end(nanoseconds(over.began + timedelta(seconds=seconds)))
