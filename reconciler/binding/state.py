"""What the reconciler remembers of a request between reconciles. Losing it is safe: the state is in the API objects.

It holds only what cannot be read from the API objects and must not be forgotten within the process: by key, each
entry valid for one UID. Times are monotonic, in seconds. Decision 2.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from reconciler.decide.outcome import Outcome
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey, ObjectUID, ResourceVersion
from shared.framework.binding.context import BindingPosts

# apiVersion, kind and key of an object that a request waits for.
Watched = tuple[str, str, ObjectKey]


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
class Unpersisted:
    """An outcome whose write is not confirmed. If ``failed_attempts`` exceeds ``failed_before``, it was stored."""

    outcome: Outcome
    failed_before: int


# After a failed attempt: not waiting, and no wait is restored from the status.
NO_WAIT = "nothing"


@dataclass(slots=True)
class WaitState:
    """What a request waits for, or last waited for, and what was reported of it."""

    cause: str = ""
    began: float = 0.0
    restored_at: float = 0.0  # when the wait was restored from the status; 0 if it was not
    reported: str = ""  # the message that was last reported in status and event
    report_at: float | None = None
    slot_reserved: bool = False  # ``report_at`` is a slot reserved with the rate limiter


@dataclass(slots=True)
class RequestState:
    """The in-memory state of one request (one UID)."""

    uid: ObjectUID
    since: float = 0.0  # when this process first saw the request
    done: bool = False  # completed or failed by this process; whatever the cache still shows is stale
    running: Running | None = None
    attempting: bool = False  # an attempt has begun and has no result yet
    unpersisted: Unpersisted | None = None
    unacknowledged_at: float | None = None  # a Binding POST without a reply: may still take effect for a minute
    retry_at: float | None = None  # no attempt before this time
    wait: WaitState = field(default_factory=WaitState)
    awaited_versions: dict[Watched, ResourceVersion] = field(default_factory=dict)  # at the last registration
    prepared: bool = False  # an attempt of this process has prepared everything, and nothing was rolled back since
    side_effects: BindRequest | None = None  # as of the last attempt that may have left some; None: none has
    rolled_back: bool = False  # all side effects of the attempts so far are rolled back
    rollback_reported: bool = False
    rollback_transient_failures: int = 0
    blocked: str = ""  # the last event's cause of why the request cannot complete
    needs_live_read: bool = False  # the cached request is known to be stale
    _latest: BindRequest | None = None  # what was written or read live, until the watch delivers it
    _older: set[ResourceVersion] = field(default_factory=set)  # versions known to precede the latest

    def close(self) -> None:
        """Mark the request as finished; keep only what identifies stale events of the watch."""
        self.done = True
        self.unpersisted = None
        self.side_effects = None
        self.awaited_versions.clear()
        self._caught_up()

    def replaces(self, before: BindRequest | None, after: BindRequest) -> None:
        """Remember a version that was written or read live, until the watch has delivered it."""
        if before is not None and before.resource_version != after.resource_version:
            self._latest = after
            self._older.add(before.resource_version)

    def latest(self, cached: BindRequest | None) -> BindRequest | None:
        """Return the cached request, or a newer known version while the watch is behind.

        If the cached version is unknown, it may precede or follow the latest one: then ``needs_live_read`` is set.
        """
        if self._latest is None or cached is None:
            return cached
        if cached.resource_version in self._older:
            return self._latest
        if cached.resource_version != self._latest.resource_version:
            self.needs_live_read = True
        self._caught_up()
        return cached

    def view(self) -> dict[str, Any]:
        """Return the state for the debug pages."""
        return {
            "uid": self.uid,
            "done": self.done,
            "bindStarted": self.running is not None and self.running.past_point,
            "unpersistedOutcome": self.unpersisted is not None,
            "waitCause": self.wait.cause or None,
            "reportedWait": self.wait.reported or None,
            "unacknowledgedBinding": self.unacknowledged_at is not None,
            "needsLiveRead": self.needs_live_read,
        }

    def _caught_up(self) -> None:
        self._latest = None
        self._older.clear()


class RequestStates:
    """States by key. A request re-created under the same name gets a new state, once the old one is released."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_key: dict[ObjectKey, RequestState] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: ObjectKey, uid: ObjectUID | None = None) -> RequestState | None:
        """Return the state under the key, of that UID if one is given; None if there is none."""
        known = self._by_key.get(key)
        return known if known is not None and uid in (None, known.uid) else None

    def values(self) -> Collection[RequestState]:
        """Return all states."""
        return self._by_key.values()

    def of(self, request: BindRequest) -> RequestState:
        """Return the request's state; creates it if there is none for this UID."""
        known = self.get(request.key, request.uid)
        if known is None:
            known = self._by_key[request.key] = RequestState(request.uid, self._monotonic())
        return known

    def wrote(self, before: BindRequest, after: BindRequest) -> None:
        """Remember the stored result of a write until the watch has delivered it."""
        known = self.get(before.key, before.uid)
        if known is not None:
            known.replaces(before, after)

    def drop(self, key: ObjectKey) -> None:
        """Drop the key's state."""
        self._by_key.pop(key, None)

    def clear(self) -> Sequence[tuple[ObjectKey, ObjectUID]]:
        """Drop all states; returns their keys and UIDs."""
        known = [(key, state.uid) for key, state in self._by_key.items()]
        self._by_key.clear()
        return known
