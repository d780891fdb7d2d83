"""How far stored times are trusted, whatever clock they were written by."""

from datetime import UTC, datetime, timedelta

import pytest

from bowline.api.meta import format_time
from bowline.framework.interface.status import UNLIMITED, Status
from bowline.framework.reason import Reason
from bowline_reconciler.decide.actions import Fail, Wait
from bowline_reconciler.decide.decide import pending_failure
from bowline_reconciler.decide.report import (
    retry_report,
    rollback_incomplete_status,
    set_aside_status,
    waiting_status,
)
from bowline_reconciler.decide.snapshot import set_aside_for, stored_pause, stored_wait
from tests.builders import request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MAX = timedelta(seconds=60)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


@pytest.mark.parametrize(
    ("last", "following", "left"),
    [
        pytest.param(-SECOND, 5 * SECOND, 5 * SECOND, id="as intended"),
        pytest.param(-9 * SECOND, -SECOND, timedelta(), id="it is over"),
        pytest.param(3 * HOUR, 3 * HOUR + 5 * SECOND, MAX, id="by a clock three hours ahead"),
        pytest.param(-3 * HOUR, -3 * HOUR + 5 * SECOND, timedelta(), id="by a clock three hours behind"),
        pytest.param(-SECOND, 600 * SECOND, 600 * SECOND, id="a pause that a plugin has asked for"),
        pytest.param(-SECOND, 99 * HOUR, HOUR, id="a clock that was set during the attempt"),
        pytest.param(None, 3 * HOUR, MAX, id="the intended time is unknown"),
    ],
)
def test_a_stored_pause_is_bounded(last: timedelta | None, following: timedelta, left: timedelta) -> None:
    status = {"nextAttemptTime": format_time(NOW + following), "failedAttempts": 1}
    if last is not None:
        status["lastAttemptTime"] = format_time(NOW + last)
    assert stored_pause(request(status), NOW, MAX) == left


def test_a_stored_wait_of_a_clock_ahead_has_only_just_begun() -> None:
    condition = {"type": "Prepared", "status": "False", "reason": "Waiting"}
    ahead = {**condition, "lastTransitionTime": format_time(NOW + HOUR)}
    assert stored_wait(request({"conditions": [ahead]}), NOW) == timedelta()
    assert stored_wait(request({"conditions": [condition]}), NOW) is None


def test_a_stored_wait_without_a_limit_is_no_part_of_one_with_a_limit() -> None:
    wait = Wait((), "the server does not answer", UNLIMITED, "plugin a")
    stored_request = request(waiting_status(request(), wait, NOW - 3 * HOUR, NOW))
    assert stored_wait(stored_request, NOW) == timedelta()
    assert stored_wait(stored_request, NOW, is_limited=False) == 3 * HOUR


@pytest.mark.parametrize(
    ("point", "ago", "deleting", "left"),
    [
        pytest.param("pre_bind", timedelta(), False, HOUR, id="an attempt"),
        pytest.param("pre_bind", 59 * 60 * SECOND, False, 60 * SECOND, id="an attempt, later"),
        pytest.param("pre_bind", HOUR, False, timedelta(), id="it is over"),
        pytest.param("pre_bind", -HOUR / 2, False, HOUR, id="by a clock that is ahead"),
        pytest.param("pre_bind", -3 * HOUR, False, timedelta(), id="by a time that no clock shows"),
        pytest.param("pre_bind", timedelta(), True, timedelta(), id="its rollback is called all the same"),
        pytest.param("rollback", timedelta(), True, HOUR, id="a rollback"),
        pytest.param("applies", timedelta(), True, HOUR, id="a query that precedes the rollback too"),
    ],
)
def test_a_request_whose_call_has_ended_a_process_is_set_aside(
    point: str, ago: timedelta, deleting: bool, left: timedelta
) -> None:
    """No attempt is counted, and nothing ends; what is reported of it later ends that."""
    before = request({"failedAttempts": 1, "phase": "Pending"})
    after = request(
        set_aside_status(before, point, "it blocks", NOW - ago),
        **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
    )
    assert set_aside_for(after, NOW, is_ending=deleting) == left
    assert (after.failed_attempts, after.phase, after.is_rollback_incomplete) == (1, before.phase, False)
    retried = retry_report(after, Status.retry("x"), "", NOW, NOW, timedelta())
    assert not set_aside_for(request(retried.status), NOW, is_ending=deleting)


def test_the_last_time_there_is_sets_nothing_aside() -> None:
    condition = {"type": "SetAside", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59Z"}
    assert set_aside_for(request({"conditions": [condition]}), NOW, is_ending=False) == timedelta()


def test_a_request_that_is_set_aside_keeps_its_failure_and_begins_its_wait_again() -> None:
    fail = Fail(Status.fatal("no device", Reason.DEVICE_CONFLICT).from_plugin("a"))
    failing = request(rollback_incomplete_status(request(), fail, Status.retry("not yet"), NOW - HOUR))
    assert pending_failure(request(set_aside_status(failing, "rollback", "it blocks", NOW))) == pending_failure(
        failing
    )
    wait = Wait((), "no volume", HOUR, "plugin a", {"plugin a": HOUR})
    waiting = request(waiting_status(request(), wait, NOW - HOUR, NOW))
    assert stored_wait(waiting, NOW) == HOUR
    assert stored_wait(request(set_aside_status(waiting, "pre_bind", "it blocks", NOW)), NOW) is None
