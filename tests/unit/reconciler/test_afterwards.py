"""Whose finish is put off, and what of it still holds when its turn comes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from reconciler.binding.deferred import AT_MOST, Bound, DeferredCompletions, still_to_finish
from reconciler.binding.read import Snapshot
from reconciler.binding.state import RequestState
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectKey, ObjectUID
from shared.testing.builders import bind_request, stored
from tests.unit.reconciler.watching import context


def request(version: str = "7", uid: str = "request-uid", **changes: Any) -> BindRequest:
    made = stored(bind_request(uid="pod-uid"), uid=uid, version=version)
    made["metadata"] |= changes.pop("metadata", {})
    return decode_bind_request(made | changes)


def bound() -> Bound:
    return Bound(Snapshot(request().key, request()), datetime(2026, 1, 1, tzinfo=UTC), context())


@pytest.mark.parametrize(
    ("in_line", "kept", "put_off"),
    [
        pytest.param(0, 0, False, id="nobody waits"),
        pytest.param(4, 0, False, id="a worker for everybody who waits"),
        pytest.param(5, 0, True, id="more wait than there are workers"),
        pytest.param(5, AT_MOST - 1, True, id="the last one there is room for"),
        pytest.param(5, AT_MOST, False, id="too many are put off already"),
    ],
)
def test_a_finish_is_put_off_where_others_are_not_bound_yet(in_line: int, kept: int, put_off: bool) -> None:
    waiting = [5]
    afterwards = DeferredCompletions(lambda: waiting[0], workers=4)
    for number in range(kept):
        assert afterwards.put_off(ObjectKey("default", f"before-{number}"), bound())
    waiting[0] = in_line
    mine = bound()
    key = ObjectKey("default", "mine")
    assert afterwards.put_off(key, mine) is put_off
    assert (key in afterwards, len(afterwards)) == (put_off, kept + put_off)
    assert afterwards.take(key) is (mine if put_off else None)
    assert afterwards.take(key) is None, "taken once"


def test_nothing_is_kept_over_the_end_of_a_term() -> None:
    afterwards = DeferredCompletions(lambda: 100, workers=4)
    afterwards.put_off(ObjectKey("default", "mine"), bound())
    afterwards.clear()
    assert len(afterwards) == 0


DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("shown", "version"),
    [
        pytest.param(request(), "8", id="the watch shows what was there before our last write"),
        pytest.param(request("8"), "8", id="the watch shows our last write"),
        pytest.param(request("9"), "9", id="somebody has written since, and nothing that matters"),
        pytest.param(None, None, id="it has left the watch"),
        pytest.param(request("9", "another-uid"), None, id="it was remade under its name"),
        pytest.param(request("9", metadata=DELETING), None, id="it is being deleted"),
        pytest.param(request("9", status={"phase": "Failed"}), None, id="another leader has ended it"),
    ],
)
def test_what_is_finished_later_is_the_request_as_it_is_now(shown: BindRequest | None, version: str | None) -> None:
    memory = RequestState(ObjectUID("request-uid"))
    memory.wrote(request(), request("8"))
    found = still_to_finish(memory, shown)
    assert (found and found.resource_version) == version


def test_what_is_done_or_forgotten_is_not_finished() -> None:
    assert still_to_finish(None, request()) is None
    assert still_to_finish(RequestState(ObjectUID("request-uid"), done=True), request()) is None
