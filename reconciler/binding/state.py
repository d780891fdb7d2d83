"""What the reconciler remembers of a request between reconciles. Losing it is safe: the state is in the API objects.

It holds only what cannot be read from the API objects and must not be forgotten within the process: by key, each
entry valid for one UID. Decision 2.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from reconciler.binding.wait_index import Watched
from reconciler.decide.outcome import Outcome
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey, ObjectUID, ResourceVersion
from shared.framework.binding.context import BindingPosts


@dataclass(slots=True)
class Running:
    """An attempt in progress. Past the point of no return it is not cancelled; if withdrawn, it sends no new POST."""

    request: BindRequest
    node_uid: ObjectUID | None = None  # as cached when the attempt began
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    posts: BindingPosts = field(default_factory=BindingPosts)
    past_point: bool = False

    def withdraw(self) -> None:
        """Cancel the attempt before the point of no return; after it, stop it before its next POST."""
        if self.past_point:
            self.posts.stopping.set()
        else:
            self.cancelled.set()


@dataclass(frozen=True, slots=True)
class Unsaved:
    """An outcome whose write is not confirmed. If ``failed_attempts`` exceeds ``failed_before``, it was stored."""

    outcome: Outcome
    failed_before: int


# After a failed attempt: not waiting, and no wait is restored from the status.
NO_WAIT = "nothing"


@dataclass(slots=True)
class RequestState:
    """The in-memory state of one request (one UID)."""

    uid: ObjectUID
    since: float = 0.0  # when this process first saw the request; this and other times are monotonic, in seconds
    done: bool = False  # completed or failed by this process; whatever the cache still shows is stale
    running: Running | None = None
    unsaved: Unsaved | None = None
    wait_name: str = ""  # what the request waits for, or last waited for
    wait_began: float = 0.0
    wait_restored_at: float = 0.0  # when the wait was restored from the status; 0 if it was not
    wait_told: str = ""  # the cause that was last reported in status and event
    tell_at: float | None = None  # when to report the wait
    has_turn: bool = False  # ``tell_at`` is a slot reserved with the rate limiter
    rollback_told: bool = False
    rollback_troubles: int = 0  # rollbacks that failed with a transient failure
    attempting: bool = False  # an attempt has begun and has no result yet
    blocked: str = ""  # the last event's cause of why the request cannot complete
    unknown_binding: float | None = None  # a POST without a reply: may still take effect for a minute
    retry_at: float | None = None  # no attempt before this time
    prepared: bool = False  # an attempt of this process has prepared everything, and nothing was rolled back since
    rolled_back: bool = False  # all side effects of the attempts so far are rolled back
    effects: BindRequest | None = None  # as of the last attempt that may have left side effects; None: none has
    slept_on: dict[Watched, ResourceVersion] = field(default_factory=dict)  # at the last registration
    ask_live: bool = False  # the cached request is known to be stale
    _latest: BindRequest | None = None
    _older: set[ResourceVersion] = field(default_factory=set)  # versions known to precede the latest

    def close(self) -> None:
        """Mark the request as finished; keep only what identifies stale events of the watch."""
        self.done = True
        self.unsaved = None
        self.effects = None
        self.slept_on.clear()
        self._latest = None
        self._older.clear()

    def wrote(self, before: BindRequest, after: BindRequest) -> None:
        """Remember the stored result of a write until the watch has delivered it."""
        self._latest = after
        self._older.add(before.resource_version)

    def saw(self, stored: BindRequest | None, live: BindRequest) -> None:
        """Remember a live read, if the cached version differs."""
        if stored is not None and stored.resource_version != live.resource_version:
            self.wrote(stored, live)

    def retried(self) -> None:
        """A failure was stored and another attempt follows; a wait in that attempt is a new one."""
        self.unsaved = None
        self.wait_name = NO_WAIT
        self.wait_told = ""
        self.tell_at = None
        self.has_turn = False

    def newest(self, stored: BindRequest | None) -> BindRequest | None:
        """Return the cached request, or a newer known version while the watch is behind.

        If the cached version is unknown, it may precede or follow the latest one: then ``ask_live`` is set.
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


class RequestStates:
    """States by key. A request re-created under the same name gets a new state, once the old one is released."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_key: dict[ObjectKey, RequestState] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: ObjectKey) -> RequestState | None:
        """Return the state under the key, of whatever UID; None if there is none."""
        return self._by_key.get(key)

    def values(self) -> Collection[RequestState]:
        """Return all states."""
        return self._by_key.values()

    def of(self, request: BindRequest) -> RequestState:
        """Return the request's state; creates it if there is none for this UID."""
        known = self._by_key.get(request.key)
        if known is None or known.uid != request.uid:
            known = self._by_key[request.key] = RequestState(request.uid, self._monotonic())
        return known

    def drop(self, key: ObjectKey) -> None:
        """Drop the key's state."""
        self._by_key.pop(key, None)

    def clear(self) -> Sequence[tuple[ObjectKey, ObjectUID]]:
        """Drop all states; returns their keys and UIDs."""
        known = [(key, memory.uid) for key, memory in self._by_key.items()]
        self._by_key.clear()
        return known
