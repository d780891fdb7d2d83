"""The call path of one review: how often it crosses between modules from the handler to its response."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from shared.api import names
from tests.unit.webhook.reviews import bind_request, pod, review
from tests.webhook.served import Served
from webhook.hooks import Hook
from webhook.server import AdmissionServer

# Packages of the path, without metrics, API types and generic parts of the runtime.
PATH, NOT_PATH = ("/webhook/", "/shared/framework/"), ("/webhook/metrics", "/tests/")
MAX_STOPS, MAX_RETURNS = 20, 8


@contextmanager
def recorded_modules() -> Iterator[list[str]]:
    """Record the module of every call from the handler on, in order, without consecutive repetitions."""
    stops: list[str] = []
    seen: set[FrameType] = set()  # a resumed coroutine is reported as a call

    def on_event(frame: FrameType, event: str, _: object) -> None:
        path, code = frame.f_code.co_filename, frame.f_code
        if event != "call" or frame in seen or code.co_name.startswith("<"):
            return
        if any(part in path for part in NOT_PATH) or not any(part in path for part in PATH):
            return
        if stops or code is AdmissionServer._respond.__code__:
            seen.add(frame)
            if not stops or stops[-1] != path:
                stops.append(path)

    sys.setprofile(on_event)
    try:
        yield stops
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    ("hook", "document"),
    [
        (Hook.MUTATE_PODS, review(pod())),
        (Hook.VALIDATE_PODS, review(pod(), pod())),
        (Hook.MUTATE_BIND_REQUESTS, review(bind_request(), group=names.GROUP, kind=names.KIND)),
    ],
)
async def test_a_review_passes_few_modules(served: Served, hook: Hook, document: Any) -> None:
    with recorded_modules() as stops:
        await served.review(hook.value, document)
    assert stops[0].endswith("webhook/server.py")
    returns = len(stops) - len(set(stops))
    assert len(stops) <= MAX_STOPS, stops
    assert returns <= MAX_RETURNS, stops
