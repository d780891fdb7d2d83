"""The call path of one review: how often it crosses between modules, and how many Python functions it calls."""

import sys
from typing import Any

import pytest

from bowline.api import names
from bowline_webhook.hooks import Hook
from bowline_webhook.review import decode_review, encode_answer, review_object
from bowline_webhook.server import AdmissionServer
from tests.call_path import recorded_stops, returns_of
from tests.unit.webhook.chains import built_in
from tests.unit.webhook.reviews import bind_request, encode, pod, review
from tests.webhook.served import Served

# Packages of the path, without metrics, API types and generic parts of the runtime.
PATH, NOT_PATH = ("/bowline_webhook/", "/bowline/framework/"), ("/bowline_webhook/metrics", "/tests/")
MAX_STOPS, MAX_RETURNS = 17, 10


@pytest.mark.parametrize(
    ("hook", "document"),
    [
        (Hook.MUTATE_PODS, review(pod())),
        (Hook.VALIDATE_PODS, review(pod(), pod())),
        (Hook.MUTATE_BIND_REQUESTS, review(bind_request(), group=names.GROUP, kind=names.KIND)),
    ],
)
async def test_a_review_passes_few_modules(listener: Served, hook: Hook, document: Any) -> None:
    with recorded_stops(AdmissionServer._respond.__code__, PATH, NOT_PATH) as stops:
        await listener.review(hook.value, document)
    assert stops[0] == "bowline_webhook/server._respond"
    assert len(stops) <= MAX_STOPS, stops
    assert returns_of(stops) <= MAX_RETURNS, stops


@pytest.mark.parametrize(
    ("hook", "annotations", "max_calls"),
    [
        pytest.param(Hook.MUTATE_PODS, {}, 81, id="a mutation of a plain pod"),
        pytest.param(Hook.MUTATE_PODS, {names.GPU_FRACTION: "0.5"}, 162, id="a mutation of a share"),
        pytest.param(Hook.VALIDATE_PODS, {}, 65, id="a validation of a plain pod"),
    ],
)
def test_a_review_calls_few_functions(hook: Hook, annotations: dict[str, str], max_calls: int) -> None:
    chain, body, calls = built_in(), encode(review(pod(annotations))), 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    for is_counted in (False, True):  # what the first review imports and caches is no cost of a review
        sys.setprofile(count if is_counted else None)
        decoded_review = decode_review(body)
        encode_answer(decoded_review, review_object(hook, decoded_review, chain))
        sys.setprofile(None)
    assert calls <= max_calls, calls
