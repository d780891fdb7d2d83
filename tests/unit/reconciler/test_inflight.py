"""How long a Binding that nobody has heard of may still take effect."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reconciler.decide.in_flight import Posts, settled_at
from reconciler.decide.observed import Absent, PodView
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectUID
from shared.testing.builders import bind_request, stored

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = timedelta(seconds=60)
POD = PodView(ObjectUID("pod-uid"), "7", "", deleting=False, finished=False, gated=False, scheduler="bowline")
LATER, MUCH_LATER = CREATED + timedelta(minutes=5), CREATED + timedelta(minutes=9)
NONE = Posts(None, None, LIMIT)
UNKNOWN = Posts(LATER, None, LIMIT)
INHERITED = Posts(None, LATER, LIMIT)


def request(**status: Any) -> BindRequest:
    return decode_bind_request(stored(bind_request(uid="pod-uid")) | {"status": status})


@pytest.mark.parametrize(
    ("req", "pod", "posts", "settled"),
    [
        pytest.param(request(), POD, NONE, None, id="none was ever sent"),
        pytest.param(request(), POD, UNKNOWN, LATER + LIMIT, id="one of ours went unanswered"),
        pytest.param(request(), POD, INHERITED, LATER + LIMIT, id="a predecessor may have sent one"),
        pytest.param(request(), POD, Posts(MUCH_LATER, LATER, LIMIT), MUCH_LATER + LIMIT, id="the last one counts"),
        pytest.param(
            request(), POD, Posts(None, CREATED - timedelta(seconds=6), LIMIT), None, id="made since we lead"
        ),
        pytest.param(
            request(),
            POD,
            Posts(None, CREATED - timedelta(seconds=5), LIMIT),
            CREATED + timedelta(seconds=55),
            id="made since we lead, or so the API server's clock says",
        ),
        pytest.param(
            request(conditions=[{"type": "RolledBack", "status": "False"}]),
            POD,
            INHERITED,
            None,
            id="the predecessor has waited before it judged",
        ),
        pytest.param(request(), Absent.GONE, UNKNOWN, None, id="there is no pod"),
        pytest.param(request(), replace(POD, uid=ObjectUID("next")), UNKNOWN, None, id="another pod refuses it"),
        pytest.param(request(), replace(POD, deleting=True), UNKNOWN, None, id="a deleting pod refuses it"),
        pytest.param(request(), replace(POD, node="node-9"), UNKNOWN, None, id="a bound pod refuses it"),
        pytest.param(request(), replace(POD, finished=True), UNKNOWN, None, id="an ended pod needs nothing"),
    ],
)
def test_when_nothing_can_take_effect_any_more(
    req: BindRequest, pod: PodView | Absent, posts: Posts, settled: datetime | None
) -> None:
    assert settled_at(req, pod, posts) == settled
