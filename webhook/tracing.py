"""Reviews as spans, and the propagation of a trace from admission to the bind: an annotation of the BindRequest.

The annotation is part of the mutating hook's patch, and only if tracing is enabled. A trace started by the request's
creator (its own annotation) or by the API server (its header) is continued.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from shared.api import names
from shared.api.meta import Object
from shared.framework.admission import Verdict
from shared.framework.mutable import MutableObject
from shared.runtime.tracing import Span, Tracer
from webhook.hooks import Hook, Review


def traced(
    tracer: Tracer, hook: Hook, review: Review, judgement: Verdict, call: tuple[datetime, datetime, str]
) -> Verdict:
    """Record the review as a span; return the verdict, with the trace annotation for a BindRequest being created.

    ``call`` is the review's start, its end, and the API server's traceparent header (empty if not sent).
    """
    began, ended, sent = call
    span = Span(
        "admission",
        began,
        ended,
        {
            "bowline.hook": hook.value,
            "bowline.allowed": judgement.allowed,
            "k8s.namespace.name": review.namespace,
            "bowline.kind": review.kind,
            "bowline.object": review.name,
        },
        fault="; ".join(fault.rule for fault in judgement.errors),
    )
    traceparent = tracer.record(span, carried(review.object or {}) or sent)
    is_created = hook is Hook.MUTATE_BIND_REQUESTS and review.operation == "CREATE" and judgement.allowed
    if not is_created or review.object is None:
        return judgement
    return with_traceparent(judgement, review.object, traceparent)


def carried(raw: Object) -> str:
    """Return the traceparent annotation of an object; empty if it has none."""
    metadata = raw.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    value = annotations.get(names.TRACEPARENT) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else ""


def with_traceparent(judgement: Verdict, raw: dict[str, Any], traceparent: str) -> Verdict:
    """Return the verdict whose patch also annotates the object; ``raw`` is the object after the patch."""
    request = MutableObject(raw)
    request.set(traceparent, "metadata", "annotations", names.TRACEPARENT)
    return replace(judgement, patch=(*judgement.patch, *request.operations))
