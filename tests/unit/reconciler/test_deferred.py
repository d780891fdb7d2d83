"""Which completions are deferred, and when a deferred one can continue."""

from datetime import UTC, datetime
from typing import Any

import pytest

from reconciler.binding.deferred import MAX_DEFERRED, DeferredBind, DeferredCompletions, is_resumable
from reconciler.binding.state import CacheOverlay
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectKey
from shared.testing.builders import bind_request, stored
from tests.unit.reconciler.watching import context


def request(version: str = "7", uid: str = "request-uid", **changes: Any) -> BindRequest:
    made = stored(bind_request(uid="pod-uid"), uid=uid, version=version)
    made["metadata"] |= changes.pop("metadata", {})
    return decode_bind_request(made | changes)


def bound() -> DeferredBind:
    return DeferredBind(context(), datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("ready", "kept", "defer"),
    [
        pytest.param(0, 0, False, id="no request waits"),
        pytest.param(4, 0, False, id="one worker for each waiting request"),
        pytest.param(5, 0, True, id="more waiting requests than workers"),
        pytest.param(5, MAX_DEFERRED - 1, True, id="the last one there is room for"),
        pytest.param(5, MAX_DEFERRED, False, id="too many are deferred already"),
    ],
)
def test_a_completion_is_deferred_while_others_are_not_bound(ready: int, kept: int, defer: bool) -> None:
    waiting = [5]
    afterwards = DeferredCompletions(lambda: waiting[0], workers=4)
    for number in range(kept):
        assert afterwards.defer(ObjectKey("default", f"before-{number}"), bound())
    waiting[0] = ready
    mine = bound()
    key = ObjectKey("default", "mine")
    assert afterwards.defer(key, mine) is defer
    assert (key in afterwards, len(afterwards)) == (defer, kept + defer)
    assert afterwards.pop(key) is (mine if defer else None)
    assert afterwards.pop(key) is None, "returned once"


def test_nothing_is_kept_over_the_end_of_a_term() -> None:
    afterwards = DeferredCompletions(lambda: 100, workers=4)
    afterwards.defer(ObjectKey("default", "mine"), bound())
    afterwards.clear()
    assert len(afterwards) == 0


DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("shown", "version"),
    [
        pytest.param(request(), "8", id="the cache has the version before our last write"),
        pytest.param(request("8"), "8", id="the cache has our last write"),
        pytest.param(request("9"), "9", id="an irrelevant later write"),
        pytest.param(None, None, id="it has left the watch"),
        pytest.param(request("9", metadata=DELETING), None, id="it is being deleted"),
        pytest.param(request("9", status={"phase": "Failed"}), None, id="another leader has ended it"),
    ],
)
def test_a_deferred_completion_uses_the_current_request(shown: BindRequest | None, version: str | None) -> None:
    overlay = CacheOverlay()
    overlay.replace(request(), request("8"))
    overlay.observe(shown)
    latest = overlay.latest(shown)
    assert (latest.resource_version if is_resumable(latest) else None) == version
