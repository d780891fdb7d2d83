"""What the reconciler remembers of a request between passes. All of it may be lost: the API objects are the journal.

What a pass cannot read off the API server's objects and must not forget within a process is here, by key and guarded
by UID, and nothing else is.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from reconciler.binding.wait_index import Watched
from reconciler.decide.outcome import Outcome
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey, ObjectUID, ResourceVersion
from shared.framework.binding.context import BindingPosts


@dataclass(slots=True)
class Running:
    """An attempt under way. Past the point of no return it is no longer cancelled, but sends no further POST."""

    request: BindRequest
    node_uid: ObjectUID | None = None  # as the store had it when the attempt began
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    posts: BindingPosts = field(default_factory=BindingPosts)
    past_point: bool = False

    def withdraw(self) -> None:
        """End the attempt before the point of no return; after it, end it between two POSTs."""
        if self.past_point:
            self.posts.stopping.set()
        else:
            self.cancelled.set()


@dataclass(frozen=True, slots=True)
class Unsaved:
    """An attempt's end whose write is not confirmed. A count above ``failed_before`` says that it went through."""

    outcome: Outcome
    failed_before: int


# After a failed attempt: no wait, and none to be restored from the status either.
NO_WAIT = "nothing"


@dataclass(slots=True)
class Memory:
    """One request's."""

    uid: ObjectUID
    since: float = 0.0  # when this process first saw the request; this and other times by the monotonic clock
    done: bool = False  # ended by us; whatever the store still shows is old
    running: Running | None = None
    unsaved: Unsaved | None = None
    wait_name: str = ""  # what the request waits for, or has last waited for
    wait_began: float = 0.0
    wait_restored_at: float = 0.0  # when the wait was taken over from the status; 0 if it was not
    wait_told: str = ""  # what has been written and evented about the wait
    tell_at: float | None = None  # when to tell of the wait
    has_turn: bool = False  # ``tell_at`` is a turn that was reserved
    rollback_told: bool = False
    rollback_troubles: int = 0  # rollbacks that the API server's own trouble alone has kept from being done
    attempting: bool = False  # an attempt has begun and has no result yet
    blocked: str = ""  # what was evented as keeping the request from its end
    unknown_binding: datetime | None = None  # a POST without an answer: may take effect until a minute after
    retry_at: float | None = None  # no attempt before this
    prepared: bool = False  # an attempt of this process has prepared everything, and nothing is undone since
    rolled_back: bool = False  # every effect of the attempts so far is undone
    effects: BindRequest | None = None  # as of the last attempt that may have left something; None: none has
    slept_on: dict[Watched, ResourceVersion] = field(default_factory=dict)  # as last seen when going to sleep
    ask_live: bool = False  # the store is known to be behind
    _latest: BindRequest | None = None
    _older: set[ResourceVersion] = field(default_factory=set)  # versions known to come before the latest

    def close(self) -> None:
        """Nothing is left to do: keep only what the watch's echo of it is recognised by."""
        self.done = True
        self.unsaved = None
        self.effects = None
        self.slept_on.clear()
        self._latest = None
        self._older.clear()

    def wrote(self, before: BindRequest, after: BindRequest) -> None:
        """Remember the answer to a write of ours until the watch has caught up with it."""
        self._latest = after
        self._older.add(before.resource_version)

    def saw(self, stored: BindRequest | None, live: BindRequest) -> None:
        """Remember what the API server itself has just shown, if the watch shows something else."""
        if stored is not None and stored.resource_version != live.resource_version:
            self.wrote(stored, live)

    def retried(self) -> None:
        """The attempt's failure is written; another one comes, and a wait in it is a new one."""
        self.unsaved = None
        self.wait_name = NO_WAIT
        self.wait_told = ""
        self.tell_at = None
        self.has_turn = False

    def newest(self, stored: BindRequest | None) -> BindRequest | None:
        """Return the stored request, or what is known to be newer while the watch has not caught up.

        A version that is not known may come before or after the latest: then ``ask_live`` is set.
        """
        if self._latest is None or stored is None:
            return stored
        if stored.resource_version in self._older:
            return self._latest
        if stored.resource_version != self._latest.resource_version:
            self.ask_live = True
        self._latest = None
        self._older.clear()
        return stored


class Memories:
    """Memory by key. A request that was remade under its name starts with a new one when the old one is let go."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_key: dict[ObjectKey, Memory] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: ObjectKey) -> Memory | None:
        """Return what is remembered under the key."""
        return self._by_key.get(key)

    def values(self) -> Collection[Memory]:
        """Return everything remembered."""
        return self._by_key.values()

    def of(self, request: BindRequest) -> Memory:
        """Return the request's memory, a new one if need be."""
        known = self._by_key.get(request.key)
        if known is None or known.uid != request.uid:
            known = self._by_key[request.key] = Memory(request.uid, self._monotonic())
        return known

    def drop(self, key: ObjectKey) -> None:
        """Forget the key."""
        self._by_key.pop(key, None)

    def clear(self) -> Sequence[tuple[ObjectKey, ObjectUID]]:
        """Forget everything; returns what it was about."""
        known = [(key, memory.uid) for key, memory in self._by_key.items()]
        self._by_key.clear()
        return known
