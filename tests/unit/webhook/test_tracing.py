"""From a review to the annotation by which the reconciler goes on with the trace."""

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jsonpatch
import pytest

from reconciler.observe.traces import traceparent
from shared.api import names
from shared.api.bindrequest import decode_bind_request
from shared.api.field_error import FieldError
from shared.framework.admission import Verdict
from shared.testing.builders import bind_request, stored
from shared.testing.clock import START
from tests.spans import SENT, Kept
from webhook.hooks import Hook, Review
from webhook.tracing import traced

CALL = (START, START + timedelta(milliseconds=1), "")


def review(raw: dict[str, Any], operation: str = "CREATE") -> Review:
    return Review("admission.k8s.io/v1", "uid", kind=names.KIND, name="pod", operation=operation, object=raw)


@pytest.mark.parametrize(
    "annotations", [None, {}, {"a": "b"}], ids=["no annotations", "empty annotations", "others' annotations"]
)
def test_a_request_that_is_created_carries_the_trace_beside_what_else_is_patched(
    annotations: dict[str, str] | None,
) -> None:
    raw = bind_request()
    if annotations is not None:
        raw["metadata"]["annotations"] = dict(annotations)
    before = deepcopy(raw)
    other = Verdict(patch=({"op": "add", "path": "/spec/podUID", "value": "u"},))
    raw["spec"]["podUID"] = "u"  # as the chain leaves it
    judgement = traced(Kept(), Hook.MUTATE_BIND_REQUESTS, review(raw), other, CALL)
    patched = jsonpatch.apply_patch(before, list(judgement.patch))
    assert patched["metadata"]["annotations"] == {**(annotations or {}), names.TRACEPARENT: SENT}
    assert patched == raw
    assert traceparent(decode_bind_request(stored(patched))) == SENT


@pytest.mark.parametrize(
    ("hook", "operation", "judgement"),
    [
        pytest.param(Hook.VALIDATE_BIND_REQUESTS, "CREATE", Verdict(), id="a hook that cannot patch"),
        pytest.param(Hook.MUTATE_BIND_REQUESTS, "UPDATE", Verdict(), id="a request that exists"),
        pytest.param(Hook.MUTATE_PODS, "CREATE", Verdict(), id="a pod"),
        pytest.param(Hook.MUTATE_BIND_REQUESTS, "CREATE", Verdict((FieldError("x/y", "a", 1, "b"),)), id="a refusal"),
    ],
)
def test_nothing_else_is_changed_but_all_is_told(hook: Hook, operation: str, judgement: Verdict) -> None:
    tracer = Kept()
    assert traced(tracer, hook, review(bind_request(), operation), judgement, CALL) == judgement
    ((span, _),) = tracer.spans
    assert (span.name, span.attributes["bowline.hook"], bool(span.fault)) == (
        "admission",
        hook.value,
        bool(judgement.errors),
    )


def test_a_trace_that_the_creator_or_the_api_server_began_goes_on() -> None:
    tracer, raw = Kept(), bind_request()
    traced(tracer, Hook.VALIDATE_PODS, review(raw), Verdict(), (*CALL[:2], "from the API server"))
    raw["metadata"]["annotations"] = {names.TRACEPARENT: "from the scheduler"}
    traced(tracer, Hook.VALIDATE_PODS, review(raw), Verdict(), (*CALL[:2], "from the API server"))
    odd = replace(review(raw), object={"metadata": {"annotations": {names.TRACEPARENT: 7}}})
    traced(tracer, Hook.VALIDATE_PODS, odd, Verdict(), CALL)
    assert [parent for _, parent in tracer.spans] == ["from the API server", "from the scheduler", ""]
