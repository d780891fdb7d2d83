"""The call path of one review: how often it crosses between modules from the handler to its response."""

from typing import Any

import pytest

from bowline.api import names
from bowline_webhook.hooks import Hook
from bowline_webhook.server import AdmissionServer
from tests.call_path import recorded_stops, returns_of
from tests.unit.webhook.reviews import bind_request, pod, review
from tests.webhook.served import Served

# Packages of the path, without metrics, API types and generic parts of the runtime.
PATH, NOT_PATH = ("/bowline_webhook/", "/bowline/framework/"), ("/bowline_webhook/metrics", "/tests/")
MAX_STOPS, MAX_RETURNS = 20, 10


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
