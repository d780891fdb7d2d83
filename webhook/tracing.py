"""Reviews as spans. A new BindRequest propagates the trace from admission to the bind, in an annotation.

A trace started by the request's creator (its own annotation) or by the API server (its header) is continued.
"""

from shared.api import names
from shared.framework.admission import Verdict
from shared.runtime.tracing import Attributes, StartedSpan, Tracer
from webhook.hooks import Hook, Review


def start_span(tracer: Tracer, review: Review, header: str) -> StartedSpan:
    """Start the span of a review; ``header`` is the API server's traceparent, empty if not sent."""
    metadata = review.object.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    carried = annotations.get(names.TRACEPARENT) if isinstance(annotations, dict) else None
    return tracer.start("admission", carried if isinstance(carried, str) and carried else header)


def end_span(span: StartedSpan, hook: Hook, review: Review, verdict: Verdict) -> None:
    """Record the verdict in the span, and end it."""
    attributes: Attributes = {
        "bowline.hook": hook.value,
        "bowline.allowed": verdict.allowed,
        "k8s.namespace.name": review.namespace,
        "bowline.kind": review.kind,
        "bowline.object": review.name,
    }
    span.end(attributes, "; ".join(error.rule for error in verdict.errors))
