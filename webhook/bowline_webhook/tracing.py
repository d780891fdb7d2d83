"""Reviews as spans. A new BindRequest propagates the trace from admission to the bind, in an annotation.

A trace started by the request's creator (its own annotation) or by the API server (its header) is continued.
"""

from opentelemetry.trace import Span, Tracer

from bowline.api import names
from bowline.framework.admission import Verdict
from bowline.runtime.tracing import parent_context, set_error
from bowline_webhook.hooks import Hook, Review


def start_span(tracer: Tracer, review: Review, header: str) -> Span:
    """Start the span of a review; ``header`` is the API server's traceparent, empty if not sent."""
    metadata = review.object.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    traceparent = annotations.get(names.TRACEPARENT) if isinstance(annotations, dict) else None
    return tracer.start_span(
        "admission", parent_context(traceparent if isinstance(traceparent, str) and traceparent else header)
    )


def end_span(span: Span, hook: Hook, review: Review, verdict: Verdict) -> None:
    """Record the verdict in the recording span, and end it."""
    span.set_attributes(
        {
            "bowline.hook": hook.value,
            "bowline.allowed": verdict.allowed,
            "k8s.namespace.name": review.namespace,
            "bowline.kind": review.kind,
            "bowline.object": review.name,
        }
    )
    set_error(span, "; ".join(error.rule.id for error in verdict.errors))
    span.end()
