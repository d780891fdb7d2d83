"""The request state while the cache is stale compared with this process's writes and live reads."""

from itertools import pairwise

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.binding.state import CacheOverlay, RequestStates


def version(number: int, uid: str = "request-uid") -> BindRequest:
    return decode_bind_request(stored(bind_request(uid="pod-uid"), uid=uid, version=str(number)))


def shown(overlay: CacheOverlay, number: int) -> tuple[str, bool]:
    """Which version counts when the store has this one, and whether a live read is needed."""
    overlay.confirm()
    cached = version(number)
    overlay.observe(cached)
    newest = overlay.latest(cached)
    assert newest is not None
    return newest.resource_version, overlay.needs_live_read


def overlay_of_writes(*versions: int) -> CacheOverlay:
    overlay = CacheOverlay()
    for before, after in pairwise(versions):
        overlay.replace(version(before), version(after))
    return overlay


def test_without_a_write_the_store_counts() -> None:
    assert shown(overlay_of_writes(1), 1) == ("1", False)


def test_an_own_write_counts_until_the_watch_shows_it() -> None:
    overlay = overlay_of_writes(1, 2)
    assert shown(overlay, 1) == ("2", False)
    assert shown(overlay, 2) == ("2", False)
    assert shown(overlay, 3) == ("3", False), "up to date: the store counts again"


def test_every_step_of_a_chain_of_writes_is_known_to_be_stale() -> None:
    """The watch delivers the finalizer's write after the status was written: the status counts."""
    overlay = overlay_of_writes(1, 2, 3)
    assert shown(overlay, 1) == ("3", False)
    assert shown(overlay, 2) == ("3", False)
    assert shown(overlay, 3) == ("3", False)


def test_an_unknown_version_is_read_live() -> None:
    assert shown(overlay_of_writes(1, 2), 7) == ("7", True)


def test_a_live_read_counts_until_the_watch_delivers_it() -> None:
    overlay = CacheOverlay()
    overlay.replace(version(1), version(5))
    assert shown(overlay, 1) == ("5", False)
    assert shown(overlay, 5) == ("5", False)


def test_a_live_read_without_news_is_not_kept() -> None:
    overlay = CacheOverlay()
    overlay.replace(version(1), version(1))
    assert shown(overlay, 2) == ("2", False)


def test_a_version_that_no_watch_delivers_is_read_live() -> None:
    assert overlay_of_writes(1, 2).latest(None) is None


def test_a_namesake_starts_with_an_empty_state() -> None:
    states = RequestStates()
    first = states.ensure(version(1, "first"))
    first.finish()
    assert states.ensure(version(2, "first")) is first
    second = states.ensure(version(3, "second"))
    assert not second.is_finished
    assert len(states) == 1


def test_clearing_the_state_returns_what_it_was_about() -> None:
    states = RequestStates()
    states.ensure(version(1, "first"))
    assert states.clear() == [(ObjectKey("default", "pod"), "first")]
    assert len(states) == 0


def test_a_finished_overlay_keeps_no_copy_of_the_request() -> None:
    overlay = overlay_of_writes(1, 2)
    overlay.finish()
    assert overlay.is_final
    # The event of the previous version is not answered with the copy of the write's reply.
    assert shown(overlay, 1) == ("1", False)
