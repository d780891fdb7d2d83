"""For how long a write without a reply, or one of the previous leader, may still take effect."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectUID, ResourceVersion
from bowline_reconciler.decide.snapshot import Absent, PodView
from bowline_reconciler.drive.in_flight import existed_before, in_flight_for
from tests.builders import request

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT, SECOND = timedelta(seconds=60), timedelta(seconds=1)
POD = PodView(
    ObjectUID("pod-uid"), ResourceVersion("7"), "", deleting=False, has_ended=False, gates=(), scheduler="ours"
)
# How long the last write of this process has had no reply, and how long another process may have sent one.
NONE = (None, None)
UNKNOWN = (20 * SECOND, None)
INHERITED = (None, 50 * SECOND)


HELD = request(finalizers=[names.FINALIZER])


@pytest.mark.parametrize(
    ("req", "pod", "ages", "seconds"),
    [
        pytest.param(request(), POD, NONE, 0, id="none was ever sent"),
        pytest.param(request(), POD, UNKNOWN, 40, id="one of this process has no reply"),
        pytest.param(request(), POD, (LIMIT, None), 0, id="its time is over"),
        pytest.param(request(), POD, INHERITED, 10, id="a previous leader may have sent one"),
        pytest.param(request(), POD, (None, 3 * LIMIT), 0, id="the second interval has ended, too"),
        pytest.param(request(), POD, (20 * SECOND, 50 * SECOND), 40, id="the last one counts"),
        pytest.param(request({"conditions": [{"type": "RolledBack", "status": "False"}]}), POD, INHERITED, 0,
            id="the previous leader has waited before it rolled back"),
        pytest.param(HELD, Absent.NOT_FOUND, INHERITED, 10, id="side effects of a previous leader need no pod"),
        pytest.param(HELD, replace(POD, uid=ObjectUID("next")), INHERITED, 10, id="nor the same pod"),
        pytest.param(request(), Absent.NOT_FOUND, INHERITED, 0, id="without side effects only a Binding matters"),
        pytest.param(request(), replace(POD, node="node-9"), INHERITED, 0, id="and a bound pod rejects it"),
        pytest.param(request(), replace(POD, uid=ObjectUID("next")), INHERITED, 0, id="so does another pod"),
        pytest.param(request(), replace(POD, deleting=True), INHERITED, 0, id="and a deleting one"),
        pytest.param(request(), replace(POD, has_ended=True), INHERITED, 0, id="an ended pod needs nothing"),
        pytest.param(request(), Absent.NOT_FOUND, UNKNOWN, 40, id="a write of this process needs no pod"),
    ],
)  # fmt: skip
def test_how_long_a_write_may_take_effect(
    req: BindRequest, pod: PodView | Absent, ages: tuple[timedelta | None, timedelta | None], seconds: int
) -> None:
    assert in_flight_for(req, pod, *ages, LIMIT) == seconds * SECOND


@pytest.mark.parametrize(
    ("newest", "existed"),
    [
        pytest.param(None, False, id="there was no request"),
        pytest.param(CREATED - SECOND, False, id="it is newer than all that existed"),
        pytest.param(CREATED, True, id="it is, or is as old as, the newest"),
        pytest.param(CREATED + SECOND, True, id="it is older than the newest"),
    ],
)
def test_requests_that_another_process_may_have_processed(newest: datetime | None, existed: bool) -> None:
    assert existed_before(request(), newest) is existed
