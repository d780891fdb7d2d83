"""From a review to the annotation with which the reconciler continues the trace."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.admission import Verdict
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.observe.traces import traceparent
from bowline_webhook.hooks import Hook, Review
from bowline_webhook.review import review_object
from bowline_webhook.tracing import end_span, start_span
from tests.spans import SENT, Spans, parent_of
from tests.unit.webhook.chains import built_in


def review(raw: dict[str, Any], operation: str = "CREATE", old: dict[str, Any] | None = None) -> Review:
    return Review(
        "admission.k8s.io/v1",
        "uid",
        group=names.GROUP,
        kind=names.KIND,
        name="pod",
        operation=operation,
        object=raw,
        old=old,
    )


@pytest.mark.parametrize(
    "annotations", [None, {}, {"a": "b"}], ids=["no annotations", "empty annotations", "others' annotations"]
)
def test_the_patch_of_a_new_request_has_the_trace(annotations: dict[str, str] | None) -> None:
    raw = bind_request()
    if annotations is not None:
        raw["metadata"]["annotations"] = dict(annotations)
    before = deepcopy(raw)
    verdict = review_object(Hook.MUTATE_BIND_REQUESTS, review(raw), built_in(), traceparent=SENT)
    assert verdict.allowed
    patched_request = jsonpatch.apply_patch(before, list(verdict.patch))
    assert patched_request["metadata"]["annotations"] == {**(annotations or {}), names.TRACEPARENT: SENT}
    assert patched_request == raw
    assert traceparent(decode_bind_request(stored(patched_request))) == SENT


@pytest.mark.parametrize(
    ("hook", "operation"),
    [
        pytest.param(Hook.VALIDATE_BIND_REQUESTS, "CREATE", id="a hook that cannot patch"),
        pytest.param(Hook.MUTATE_BIND_REQUESTS, "UPDATE", id="a request that exists"),
    ],
)
def test_nothing_else_has_the_trace(hook: Hook, operation: str) -> None:
    raw = bind_request()
    assert review_object(hook, review(raw, operation, deepcopy(raw)), built_in(), traceparent=SENT).patch == ()
    assert names.TRACEPARENT not in raw["metadata"].get("annotations", {})


def test_without_tracing_no_request_is_annotated() -> None:
    raw = bind_request()
    review_object(Hook.MUTATE_BIND_REQUESTS, review(raw), built_in())
    assert names.TRACEPARENT not in raw["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    "verdict", [Verdict(), Verdict((FieldError(Rule("x/y", "a test's"), "a", 1, "b"),))], ids=["allowed", "denied"]
)
def test_a_span_has_the_verdict(verdict: Verdict) -> None:
    spans, bind_review = Spans(), review(bind_request())
    end_span(start_span(spans.tracer, bind_review, ""), Hook.MUTATE_BIND_REQUESTS, bind_review, verdict)
    (span,) = spans.ended()
    assert span.attributes == {
        "bowline.hook": Hook.MUTATE_BIND_REQUESTS.value,
        "bowline.allowed": verdict.allowed,
        "k8s.namespace.name": bind_review.namespace,
        "bowline.kind": names.KIND,
        "bowline.object": "pod",
    }
    assert (span.name, span.status.description) == ("admission", None if verdict.allowed else "x/y")


def test_a_trace_of_the_creator_or_the_api_server_is_continued() -> None:
    spans, raw = Spans(), bind_request()
    from_api_server = SENT.replace("b7ad", "a000")

    def record_span(pod_review: Review) -> None:
        end_span(start_span(spans.tracer, pod_review, from_api_server), Hook.VALIDATE_PODS, pod_review, Verdict())

    record_span(review(raw))
    raw["metadata"]["annotations"] = {names.TRACEPARENT: SENT}
    record_span(review(raw))
    record_span(review({"metadata": {"annotations": {names.TRACEPARENT: 7}}}))
    assert [parent_of(span) for span in spans.ended()] == [from_api_server, SENT, from_api_server]
