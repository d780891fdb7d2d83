"""When a request is processed again after a transient failure, and which completions are deferred."""

from datetime import timedelta
from typing import Any, cast

import pytest

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.kube.availability import Availability
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.binding.effects import Work
from bowline_reconciler.binding.requeue import ATTEMPT_PAUSE, DEFER, MAX_DEFERRED, Requeue, WaitIndex
from bowline_reconciler.binding.state import RequestState
from bowline_reconciler.binding.writer import Writer
from bowline_reconciler.decide.actions import Complete
from bowline_reconciler.decide.snapshot import Snapshot
from bowline_reconciler.decide.step import Facts
from bowline_reconciler.decide.transient import QUIET_FAILURES
from bowline_reconciler.reconciler import is_resumable

NO_WRITER = cast(Writer, None)
DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def requeue(clock: SteppedClock, *, is_busy: bool = True) -> Requeue:
    return Requeue(WaitIndex({}), NO_WRITER, Availability(clock), clock, lambda: 0.5, lambda: is_busy)


def state() -> RequestState:
    return RequestState(ObjectUID("request-uid"))


def test_only_a_retry_after_holds_the_request() -> None:
    requests, failing = requeue(SteppedClock()), state()
    requests.extend_streak(failing, None)
    assert requests.error("429", failing, timedelta(seconds=17)).retry_after == timedelta(seconds=17)
    assert requests.error("unreachable", failing).retry_after is None


def test_a_request_whose_failures_go_on_rests_whatever_is_patched() -> None:
    requests, failing = requeue(SteppedClock()), state()
    for rest in (*[timedelta()] * QUIET_FAILURES, ATTEMPT_PAUSE):
        requests.extend_streak(failing, None)
        assert requests.error("unreachable", failing).rest == rest


def test_the_failure_that_is_reported_after_a_minute_is_not_delayed_beyond_it() -> None:
    clock, failing = SteppedClock(), state()
    requests = requeue(clock)
    requests.extend_streak(failing, None)
    clock.step(timedelta(seconds=58))
    assert requests.error("unreachable", failing).at_most == timedelta(seconds=2)
    clock.step(timedelta(seconds=2))
    requests.extend_streak(failing, None)
    assert failing.failures.is_own
    assert requests.error("unreachable", failing).at_most == timedelta.max


def bound(name: str) -> Work:
    own = decode_bind_request(stored(bind_request(name, uid="pod-uid")))
    return Work(Snapshot(own), state(), Complete(), Facts(own))


@pytest.mark.parametrize(
    ("is_busy", "deferred_count", "is_deferred"),
    [
        pytest.param(False, 0, False, id="a worker for each waiting request"),
        pytest.param(True, 0, True, id="more waiting requests than workers"),
        pytest.param(True, MAX_DEFERRED - 1, True, id="the last one there is room for"),
        pytest.param(True, MAX_DEFERRED, False, id="too many are deferred already"),
    ],
)
def test_a_completion_is_deferred_while_others_are_not_bound(
    is_busy: bool, deferred_count: int, is_deferred: bool
) -> None:
    requests = requeue(SteppedClock(), is_busy=is_busy)
    for number in range(deferred_count):
        assert requests.defer(bound(f"before-{number}")) == DEFER
    own_bind, key = bound("mine"), ObjectKey("default", "mine")
    assert requests.may_defer is is_deferred
    if is_deferred:
        assert requests.defer(own_bind) == DEFER
    assert (requests.is_deferred(key), requests.sizes["deferredCompletions"]) == (
        is_deferred,
        deferred_count + is_deferred,
    )
    assert requests.take(key) is (own_bind if is_deferred else None)
    assert requests.take(key) is None, "returned once"


def request(version: str = "7", uid: str = "request-uid", **changes: Any) -> BindRequest:
    made = stored(bind_request(uid="pod-uid"), uid=uid, version=version)
    made["metadata"] |= changes.pop("metadata", {})
    return decode_bind_request(made | changes)


@pytest.mark.parametrize(
    ("latest", "is_completed"),
    [
        pytest.param(request("9"), True, id="an irrelevant later write"),
        pytest.param(None, False, id="it has left the watch"),
        pytest.param(request("9", metadata=DELETING), False, id="it is being deleted"),
        pytest.param(request("9", status={"phase": "Failed"}), False, id="another leader has ended it"),
    ],
)
def test_a_deferred_completion_is_of_a_pending_request(latest: BindRequest | None, is_completed: bool) -> None:
    assert is_resumable(latest) is is_completed
