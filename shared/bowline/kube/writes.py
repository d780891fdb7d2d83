"""The writes of a client: which may be sent, which may still land without a reply, and which versions are its own.

**The fence.** A process that does not lead writes nothing but Leases and events. It is a time, which each other write
asks for directly before its first byte: a process may be stopped at any time, and continue when another one leads.
Then a handshake ends before any timer does. Decision 120.

**Late writes.** The API server may still execute a write after its caller has given up. A caller that must know, such
as the reconciler for all plugins of a request, makes a ``LateWrites`` the current one; the client notes every write
of that context in it, also of tasks that the context creates. Work that another task does for the caller is noted
with ``noting`` as well. Whoever undoes something, or lets another one begin, waits after the last one without a reply
until the API server's limit for requests is over. A read proves nothing: what shows that one write cannot land any
more shows nothing of another. Decision 10.

**Own writes.** A watch event that shows a version which this client has written is no news to its process. It may
arrive before the reply of the write that caused it. So while a write of the object is in progress, the event is kept,
and judged when the reply is there. A write without a reply, and one whose version was forgotten, is taken for another
client's: that costs a needless look, never a missed change. Only a write that requires the resourceVersion of its
object counts as its author's: the reply of another one may have the version of another client's write, because the
object had the content already. This is valid for an event of a watch, which shows every version. A list shows the
last one only: an own version may contain another client's change that nothing else has shown.

Pure but for the context variable.
"""

import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from bowline.api.meta import ObjectKey
from bowline.kube.calls import Call
from bowline.kube.errors import ConnectionFailed, InfrastructureError, KubeError
from bowline.kube.resources import BINDREQUESTS, EVENTS, LEASES, PODS, SELF_SUBJECT_REVIEWS, Resource

# Sent while read-only: a standby acquires the Lease with them, and events change nothing. A review stores nothing.
_UNFENCED = (LEASES, EVENTS, SELF_SUBJECT_REVIEWS)


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """What a request is about; its subresources share its version."""

    resource: Resource
    key: ObjectKey


@dataclass(slots=True)
class LateWrites:
    """Which writes of one context may still land: those in progress, and, after their end, those without a reply."""

    has_lost_binding: bool = False  # a Binding that was sent has no reply
    in_progress: int = 0
    _lost_at: float | None = None  # when the caller of the last one without a reply gave up, monotonic

    def __bool__(self) -> bool:
        return self.in_progress > 0 or self._lost_at is not None

    def lose(self, now: float, *, is_binding: bool) -> None:
        """Note the end of a write that may have been applied, at ``now``."""
        self._lost_at, self.has_lost_binding = now, self.has_lost_binding or is_binding

    def last(self, now: float) -> float | None:
        """Return when the last one ended; ``now`` if one is in progress; None if there is none."""
        return now if self.in_progress else self._lost_at


_CURRENT: ContextVar[LateWrites | None] = ContextVar("late writes", default=None)


class Ledger:
    """The writes of one client, except of Leases and events. ``now`` returns monotonic seconds.

    ``limit``: how long the API server may take to execute one. ``inherits``: whether a former leader may have sent
    some that still take effect.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.limit = timedelta()
        self.inherits = True
        self._now = now
        self._left_s: Callable[[], float] = lambda: math.inf
        self._all = LateWrites()

    def permit(self, left_s: Callable[[], float]) -> None:
        """Permit writes as long as ``left_s``, called when each has its connection, returns a positive number."""
        self._left_s = left_s

    def forbid(self) -> None:
        """Make the client read-only, as this process does not lead: each write then raises ConnectionFailed."""
        self.permit(lambda: 0.0)

    @property
    def is_quiet(self) -> bool:
        """Whether no write of this client may still take effect."""
        lost_at = self._all.last(self._now())
        return lost_at is None or self._now() - lost_at >= self.limit.total_seconds()

    @contextmanager
    def sending(self, call: Call) -> Iterator[Callable[[], None] | None]:
        """Note a write while it is in progress. Yields what is called directly before it is sent.

        That raises ConnectionFailed if the write must not be sent. None of a read, a Lease and an event.
        """
        if call.method == "GET" or call.resource in _UNFENCED:
            yield None
            return
        is_sent = False

        def send() -> None:
            nonlocal is_sent
            if self._left_s() <= 0:
                raise ConnectionFailed("not sent: this process no longer leads")
            is_sent = True

        current = _CURRENT.get()
        noted = (self._all,) if current is None else (self._all, current)
        for writes in noted:
            writes.in_progress += 1
        try:
            yield send
        except BaseException as error:
            is_answered = isinstance(error, KubeError) and not (
                isinstance(error, InfrastructureError) and error.may_have_been_applied
            )
            if is_sent and not is_answered:
                for writes in noted:
                    writes.lose(self._now(), is_binding=call.resource == PODS and call.subresource == "binding")
            raise
        finally:
            for writes in noted:
                writes.in_progress -= 1


@contextmanager
def noting(writes: LateWrites | None) -> Iterator[None]:
    """Note the writes of a block, and of the tasks that it creates."""
    token = _CURRENT.set(writes)
    try:
        yield
    finally:
        _CURRENT.reset(token)


Exchange = Callable[[], Coroutine[Any, Any, tuple[dict[str, Any], int]]]
# What is judged: the watches of these wake requests.
_RESOURCES = (PODS, BINDREQUESTS)
# The last versions that are kept: more than are written before a healthy watch shows them.
_MAX_VERSIONS = 4096


@dataclass(slots=True)
class _InProgress:
    """The writes of one object that have no reply yet, and the events that wait for it."""

    count: int = 0
    on_foreign: dict[str, Callable[[], None]] = field(default_factory=dict)  # by version


class OwnWrites:
    """The versions that one client has written."""

    def __init__(self) -> None:
        self._versions: dict[tuple[WrittenObject, str], None] = {}
        self._in_progress: dict[WrittenObject, _InProgress] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def observing(self, target: WrittenObject, body: Any, exchange: Exchange) -> Exchange:
        """Return the exchange of a request with its reply and size; of a write it notes the version in the reply."""
        guard = _guard(body) if target.resource in _RESOURCES else ""
        return partial(self._observed, target, guard, exchange) if guard else exchange

    def judge(self, target: WrittenObject, version: str, on_foreign: Callable[[], None]) -> None:
        """Call ``on_foreign`` if another client has written this version of the object; perhaps only later."""
        if self._versions.pop((target, version), self) is not self:
            return
        writes = self._in_progress.get(target)
        if writes is None:
            on_foreign()
        else:
            writes.on_foreign[version] = on_foreign

    async def _observed(self, target: WrittenObject, guard: str, exchange: Exchange) -> tuple[dict[str, Any], int]:
        writes = self._in_progress.setdefault(target, _InProgress())
        writes.count += 1
        version = ""
        try:
            reply, size = await exchange()
            version = (reply.get("metadata") or {}).get("resourceVersion") or ""
            if version == guard:
                version = ""  # nothing was written: the version is another client's
        finally:
            writes.count -= 1
            self._end(target, writes, version)
        return reply, size

    def _end(self, target: WrittenObject, writes: _InProgress, version: str) -> None:
        if version and writes.on_foreign.pop(version, None) is None:
            self._versions[target, version] = None
            if len(self._versions) > _MAX_VERSIONS:
                del self._versions[next(iter(self._versions))]
        if not writes.count:
            del self._in_progress[target]
            for on_foreign in writes.on_foreign.values():
                on_foreign()


def _guard(body: Any) -> str:
    """Return the resourceVersion that the object must have; empty if any, and for a deletion."""
    return (body.get("metadata") or {}).get("resourceVersion") or "" if isinstance(body, Mapping) else ""
