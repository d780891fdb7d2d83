"""What the reconciler remembers of a request between passes. All of it may be lost: the API objects are the journal.

What a pass cannot read off the API server's objects and must not forget within a process is here, by key and guarded
by UID, and nothing else is.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

from reconciler.settle import Outcome
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey, ObjectUID, ResourceVersion


@dataclass(slots=True)
class Running:
    """An attempt under way. Past the point of no return it is no longer cancelled."""

    request: BindRequest
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    past_point: bool = False


@dataclass(frozen=True, slots=True)
class Unsaved:
    """An attempt's end whose write is not confirmed. A count above ``failed_before`` says that it went through."""

    outcome: Outcome
    failed_before: int


@dataclass(slots=True)
class Memory:
    """One request's."""

    uid: ObjectUID
    done: bool = False  # ended by us; whatever the store still shows is old
    running: Running | None = None
    unsaved: Unsaved | None = None
    wait_began: datetime | None = None
    wait_told: str = ""  # what has been written and evented about the wait
    rollback_told: bool = False
    unknown_binding: datetime | None = None  # a POST without an answer: may take effect until a minute after
    ask_live: bool = False  # the store is known to be behind
    _latest: BindRequest | None = None
    _based_on: ResourceVersion | None = None

    def wrote(self, before: BindRequest, after: BindRequest) -> None:
        """Remember the answer to a write of ours until the watch has caught up with it."""
        self._latest = after
        # A chain of writes within one pass starts from what the store has.
        self._based_on = self._based_on or before.resource_version

    def newest(self, stored: BindRequest | None) -> BindRequest | None:
        """Return the stored request, or the answer to our own write if the store has not moved since."""
        if self._latest is None:
            return stored
        if stored is None or stored.resource_version == self._based_on:
            return self._latest
        self._latest = self._based_on = None
        return stored


class Memories:
    """Memory by key. A request that was remade under its name starts with an empty one."""

    def __init__(self) -> None:
        self._by_key: dict[ObjectKey, Memory] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: ObjectKey) -> Memory | None:
        """Return what is remembered under the key."""
        return self._by_key.get(key)

    def values(self) -> Collection[Memory]:
        """Return everything remembered."""
        return self._by_key.values()

    def of(self, request: BindRequest) -> tuple[Memory, ObjectUID | None]:
        """Return the request's memory, and the UID of a predecessor that it replaces here."""
        known = self._by_key.get(request.key)
        if known is not None and known.uid == request.uid:
            return known, None
        fresh = self._by_key[request.key] = Memory(request.uid)
        return fresh, known.uid if known else None

    def drop(self, key: ObjectKey) -> ObjectUID | None:
        """Forget the key; returns the UID that was remembered."""
        known = self._by_key.pop(key, None)
        return known.uid if known else None
