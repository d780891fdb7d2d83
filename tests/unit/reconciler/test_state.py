"""The request state while the cache is stale compared with this process's writes and live reads."""

from itertools import pairwise

from reconciler.binding.state import RequestState, RequestStates
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectKey, ObjectUID
from shared.testing.builders import bind_request, stored


def version(number: int, uid: str = "request-uid") -> BindRequest:
    return decode_bind_request(stored(bind_request(uid="pod-uid"), uid=uid, version=str(number)))


def shown(memory: RequestState, number: int) -> tuple[str, bool]:
    """Which version counts when the store has this one, and whether a live read is needed."""
    memory.needs_live_read = False
    newest = memory.latest(version(number))
    assert newest is not None
    return newest.resource_version, memory.needs_live_read


def memory_of_writes(*versions: int) -> RequestState:
    memory = RequestState(ObjectUID("request-uid"))
    for before, after in pairwise(versions):
        memory.replaces(version(before), version(after))
    return memory


def test_without_a_write_the_store_counts() -> None:
    assert shown(memory_of_writes(1), 1) == ("1", False)


def test_an_own_write_counts_until_the_watch_shows_it() -> None:
    memory = memory_of_writes(1, 2)
    assert shown(memory, 1) == ("2", False)
    assert shown(memory, 2) == ("2", False)
    assert shown(memory, 3) == ("3", False), "up to date: the store counts again"


def test_every_step_of_a_chain_of_writes_is_known_to_be_stale() -> None:
    """The watch delivers the finalizer's write after the status was written: the status counts."""
    memory = memory_of_writes(1, 2, 3)
    assert shown(memory, 1) == ("3", False)
    assert shown(memory, 2) == ("3", False)
    assert shown(memory, 3) == ("3", False)


def test_an_unknown_version_is_read_live() -> None:
    assert shown(memory_of_writes(1, 2), 7) == ("7", True)


def test_a_live_read_counts_until_the_watch_delivers_it() -> None:
    memory = RequestState(ObjectUID("request-uid"))
    memory.replaces(version(1), version(5))
    assert shown(memory, 1) == ("5", False)
    assert shown(memory, 5) == ("5", False)


def test_a_live_read_without_news_is_not_kept() -> None:
    memory = RequestState(ObjectUID("request-uid"))
    memory.replaces(version(1), version(1))
    assert shown(memory, 2) == ("2", False)


def test_a_version_that_no_watch_delivers_is_read_live() -> None:
    assert memory_of_writes(1, 2).latest(None) is None


def test_a_namesake_starts_with_an_empty_state() -> None:
    states = RequestStates()
    first = states.of(version(1, "first"))
    first.done = True
    assert states.of(version(2, "first")) is first
    second = states.of(version(3, "second"))
    assert not second.done
    assert len(states) == 1


def test_clearing_the_state_returns_what_it_was_about() -> None:
    states = RequestStates()
    states.of(version(1, "first"))
    assert states.clear() == [(ObjectKey("default", "pod"), "first")]
    assert len(states) == 0


def test_a_closed_memory_keeps_no_copy_of_the_request() -> None:
    memory = memory_of_writes(1, 2)
    memory.close()
    assert memory.done
    # The event of the previous version is not answered with the copy of the write's reply.
    assert shown(memory, 1) == ("1", False)
