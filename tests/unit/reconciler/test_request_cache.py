"""The cache of requests: explored for each order of writes, reads, events and lists up to a bound."""

import itertools
from collections.abc import Callable, Container
from dataclasses import replace

import pytest

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey, ResourceVersion
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.watch.request_cache import RequestCache

# Explores a whole space.
pytestmark = pytest.mark.timeout(300)

KEY = ObjectKey("default", "train")
UIDS = "ABCDEFG"


def made(number: int, uid: str) -> BindRequest:
    return decode_bind_request(stored(bind_request("train", uid="pod-uid"), uid=uid, version=str(number)))


VERSIONS = {(number, uid): made(number, uid) for number in range(12) for uid in UIDS}


def version(number: int) -> BindRequest:
    return VERSIONS[number, "A"]


class World:
    """One name: what is stored of it, a watch that is behind, and a process with its cache."""

    def __init__(self) -> None:
        self.history: list[str] = ["A"]  # by version: the UID of the stored request, empty if none is
        self.position = 0
        self.is_listing = False
        self.shown: set[ObjectKey] = {KEY}
        self.cache = RequestCache(self.shown, lambda: self.version)
        self.cache.deliver(KEY, VERSIONS[0, "A"])
        self.sent_read: tuple[int, BindRequest | None] | None = None
        self.reply: int | None = None
        self.newest = 0  # version that the process knows of
        self.past: set[str] = set()  # requests that it knows to be gone

    @property
    def version(self) -> ResourceVersion:
        return ResourceVersion("" if self.is_listing else str(self.position))

    def at(self, number: int) -> BindRequest | None:
        return VERSIONS[number, self.history[number]] if self.history[number] else None

    def write(self) -> None:
        """This process writes what it has decided on its cached version; the reply is learnt by ``answer``."""
        request = self.cache.get(KEY)
        if request is not None and self.reply is None:
            if request == self.at(len(self.history) - 1):
                self.history.append(request.uid)
                self.reply = len(self.history) - 1
            else:
                self.cache.mark_stale([KEY])  # a Conflict

    def answer(self) -> None:
        if self.reply is not None:
            request = self.at(self.reply)
            assert request is not None
            self.cache.learn(request)
            self._know(self.reply)
            self.reply = None

    def change(self) -> None:
        """Another client writes."""
        if self.history[-1]:
            self.history.append(self.history[-1])

    def delete(self) -> None:
        """The request is deleted, or the next one of its name is created."""
        self.history.append("" if self.history[-1] else UIDS[len(set(self.history) - {""})])

    def deliver(self) -> None:
        if not self.is_listing and self.position < len(self.history) - 1:
            self.position += 1
            self._show(self.at(self.position))

    def begin_list(self) -> None:
        self.is_listing = True

    def list(self) -> None:
        """List, and watch from there on."""
        self.is_listing = True
        request = self.at(len(self.history) - 1)
        cached_uid = self.history[self.position]
        if KEY in self.shown and request is not None and request.uid != cached_uid:
            self._show(None)
        self.position = len(self.history) - 1
        self._show(request)
        self.is_listing = False
        self.cache.drop_passed()

    def send_read(self) -> None:
        if self.sent_read is None:
            self.sent_read = len(self.history) - 1, self.cache.get(KEY)

    def read(self) -> None:
        """The reply to a live read."""
        self.send_read()
        assert self.sent_read is not None
        (number, before), self.sent_read = self.sent_read, None
        request = self.at(number)
        if request is None:
            self.past |= {before.uid} if before is not None else set()
            self.cache.end(KEY, before)
        else:
            newest = self.cache.confirm(request, before)
            assert int(newest.resource_version) >= number
            self._know(number)

    def check(self) -> None:
        request = self.cache.get(KEY)
        if request is not None:
            assert request.uid not in self.past, "a request that was gone is back"
            assert int(request.resource_version) >= self.newest, "older than what was known"

    def settle(self) -> None:
        """Everything is delivered: the cache is what is stored, and nothing else is kept."""
        self.answer()
        self.list()
        request = self.at(len(self.history) - 1)
        assert self.cache.get(KEY) == request
        assert self.cache.sizes["ahead"] == 0

    def _show(self, request: BindRequest | None) -> None:
        if request is not None:
            self.shown.add(KEY)
        elif KEY not in self.shown:
            return
        else:
            self.shown.discard(KEY)
        self.cache.deliver(KEY, request)

    def _know(self, number: int) -> None:
        if number > self.newest:
            self.past |= set(self.history[:number]) - {"", self.history[number]}
            self.newest = number


STEPS: tuple[Callable[[World], None], ...] = (
    World.write,
    World.answer,
    World.change,
    World.delete,
    World.deliver,
    World.begin_list,
    World.list,
    World.send_read,
    World.read,
)


@pytest.mark.parametrize("first", STEPS, ids=lambda step: step.__name__)
def test_nothing_older_than_what_is_known_is_cached_whatever_the_watch_shows(first: Callable[[World], None]) -> None:
    for series in itertools.product(STEPS, repeat=4):
        world = World()
        try:
            for step in (first, *series):
                step(world)
                world.check()
            world.settle()
        except AssertionError as error:
            raise AssertionError([step.__name__ for step in (first, *series)], str(error)) from error


class Watch:
    """A cache, and up to where its watch has delivered the changes."""

    def __init__(self, position: str, shown: Container[ObjectKey] = frozenset({KEY})) -> None:
        self.position = position
        self.cache = RequestCache(shown, lambda: ResourceVersion(self.position))


def test_a_request_that_the_watch_does_not_select_is_not_kept() -> None:
    watch = Watch("5", shown=())
    cache = watch.cache
    assert cache.confirm(version(3), None) == version(3)
    assert KEY not in cache
    cache.confirm(version(7), None)
    assert cache.get(KEY) == version(7), "the watch may show it yet"
    watch.position = "8"
    cache.confirm(version(7), version(7))
    assert (KEY in cache, cache.sizes["ahead"]) == (False, 0)


def test_after_a_restore_of_etcd_what_was_known_is_read_live_again() -> None:
    watch = Watch("7")
    cache = watch.cache
    cache.deliver(KEY, version(7))
    cache.learn(version(9))
    watch.position = ""
    cache.deliver(KEY, version(5), is_trusted=False)
    assert (cache.get(KEY), cache.is_stale(KEY)) == (version(5), True)
    watch.position = "5"
    assert cache.confirm(version(4), version(5)) == version(4)
    assert (cache.get(KEY), cache.is_stale(KEY)) == (version(4), False)
    cache.learn(version(9))
    cache.deliver(KEY, None, is_trusted=False)
    assert not cache.is_stale(KEY), "nothing is known of it that could be read live"


def test_a_request_that_was_gone_before_the_watch_shows_it_is_not_cached() -> None:
    cache = Watch("5", shown=()).cache
    cache.confirm(version(7), None)
    cache.end(KEY, version(7))
    cache.deliver(KEY, version(7))
    assert KEY not in cache


def test_a_stale_request_stays_stale_until_it_is_read_live() -> None:
    watch = Watch("7")
    cache = watch.cache
    cache.deliver(KEY, version(7))
    cache.mark_stale([KEY])
    watch.position = "8"
    cache.deliver(KEY, version(8))
    assert cache.is_stale(KEY)
    cache.end(KEY, version(8))
    assert not cache.is_stale(KEY)


def test_of_a_request_that_the_watch_shows_no_more_nothing_is_kept() -> None:
    """A process that does not lead reads none live: the keys would add up until its term."""
    cache = Watch("7").cache
    cache.deliver(KEY, version(7))
    cache.mark_stale([KEY])
    cache.deliver(KEY, None)
    assert cache.sizes == {"ahead": 0, "stale": 0}


def test_a_reply_that_comes_after_its_event_leaves_nothing_to_wait_for() -> None:
    cache = Watch("7").cache
    cache.deliver(KEY, version(7))
    cache.learn(version(7))
    assert cache.sizes["ahead"] == 0


def test_a_request_whose_last_finalizer_is_removed_while_it_is_deleted_is_gone() -> None:
    """The reply may have the version that the watch has delivered already; the event of the deletion comes later."""
    cache = Watch("7").cache
    cache.deliver(KEY, version(7))
    cache.learn(replace(version(7), deleting=True, finalizers=("another.example/finalizer",)))
    assert KEY in cache
    cache.learn(replace(version(7), deleting=True, finalizers=()))
    assert KEY not in cache
    cache.deliver(KEY, version(8))
    assert KEY not in cache


def test_a_request_that_is_read_again_after_it_was_taken_for_gone_is_shown_again() -> None:
    """A restored etcd has it once more: its UID is not that of a request that is gone any more."""
    world = World()
    world.cache.end(KEY, VERSIONS[0, "A"])
    world.cache.confirm(version(1), None)
    world.cache.deliver(KEY, version(2))
    assert world.cache.get(KEY) == version(2)
