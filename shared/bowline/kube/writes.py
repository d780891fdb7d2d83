"""The writes of a client: which may still land without a reply, and which versions of an object are its own.

**Late writes.** The API server may still execute a write after its caller has given up. A caller that must know, such
as the reconciler for all plugins of a request, makes a ``LateWrites`` the current one; the client notes every write
of that context in it, also of tasks that the context creates. Work that another task does for the caller is noted
with ``noting`` as well. Whoever undoes something, or lets another one begin, waits until no noted write can land any
more.

A write with a resourceVersion cannot land once its object has another one: every reply that the client receives in
the context proves that for its object. All others can land until the API server's limit for requests. Decision 10.

**Own writes.** A watch event that shows a version which this client has written is no news to its process. It may
arrive before the reply of the write that caused it. So while a write of the object is in progress, the event is kept,
and judged when the reply is there. A write without a reply, and one whose version was forgotten, is taken for another
client's: that costs a needless look, never a missed change. Only a write that requires the resourceVersion of its
object counts as its author's: the reply of another one may have the version of another client's write, because the
object had the content already. This is valid for an event of a watch, which shows every version. A list shows the
last one only: an own version may contain another client's change that nothing else has shown.

Pure but for the context variable.
"""

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bowline.api.meta import ObjectKey
from bowline.kube.errors import InfrastructureError, KubeError, NotFound
from bowline.kube.resources import BINDREQUESTS, PODS, Resource


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """What a request is about; its subresources share its version."""

    resource: Resource
    key: ObjectKey


@dataclass(eq=False, slots=True)
class SentWrite:
    """A write. ``guard``: the resourceVersion that its object must have; empty if any."""

    target: WrittenObject
    guard: str
    is_binding: bool
    is_sent: bool = False  # before, it waits in the client's own queue
    lost_at: float | None = None  # when its caller gave up, monotonic; None while it is in progress

    def send(self, on_send: Callable[[], None] | None = None) -> None:
        """Record that the write leaves the client's own queue; then call ``on_send``."""
        self.is_sent = True
        if on_send is not None:
            on_send()

    def lose(self, now: float) -> None:
        """Record that the write has ended without a reply."""
        self.lost_at = now


class LateWrites:
    """The writes of one context that have no reply. ``now``: the monotonic time."""

    def __init__(self) -> None:
        self._writes: list[SentWrite] = []

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def has_binding(self) -> bool:
        """Whether a Binding that was sent has no reply."""
        return any(write.is_binding and write.is_sent for write in self._writes)

    def assume_binding(self, pod: WrittenObject, now: float) -> None:
        """Note a Binding that somebody may have sent in another way, at ``now`` at the latest."""
        self._writes.append(SentWrite(pod, "", is_binding=True, is_sent=True, lost_at=now))

    def last(self, now: float, *, bindings: bool) -> float | None:
        """Return when the last one, of Bindings or of all others, ended; ``now`` if one is in progress; else None."""
        ends = [
            write.lost_at if write.lost_at is not None else now
            for write in self._writes
            if write.is_binding is bindings and write.is_sent
        ]
        return max(ends, default=None)

    def guarded_objects(self) -> Collection[WrittenObject]:
        """Return the objects whose present version may prove that a write cannot land any more."""
        return {write.target for write in self._writes if write.guard and write.lost_at is not None}

    @contextmanager
    def sending(self, write: SentWrite, now: Callable[[], float]) -> Iterator[None]:
        """Note a write while it is in progress, and from then on if it may have been applied."""
        self._writes.append(write)
        try:
            yield
        except KubeError as error:
            if isinstance(error, InfrastructureError) and error.may_have_been_applied:
                write.lose(now())
            else:
                self._writes.remove(write)
            raise
        except BaseException:
            if write.is_sent:
                write.lose(now())
            else:
                self._writes.remove(write)
            raise
        else:
            self._writes.remove(write)

    async def observed(
        self, target: WrittenObject, verb: str, exchange: Coroutine[Any, Any, tuple[dict[str, Any], int]]
    ) -> tuple[dict[str, Any], int]:
        """Await an exchange with its reply and size; the reply may prove that an earlier write cannot land."""
        try:
            reply, size = await exchange
        except NotFound:
            self.observe(target, "")
            raise
        if verb not in ("list", "create"):
            self.observe(target, (reply.get("metadata") or {}).get("resourceVersion") or "")
        return reply, size

    def observe(self, target: WrittenObject, version: str) -> None:
        """Drop the writes that cannot land any more: the object has this version, or does not exist (empty)."""
        if self._writes:
            self._writes = [
                write
                for write in self._writes
                if write.target != target or not write.guard or write.guard == version or write.lost_at is None
            ]


_CURRENT: ContextVar[LateWrites | None] = ContextVar("late writes", default=None)


def current_writes() -> LateWrites | None:
    """Return where the writes of this context are noted; None if nowhere."""
    return _CURRENT.get()


@contextmanager
def noting(writes: LateWrites | None) -> Iterator[None]:
    """Note the writes of a block, and of the tasks that it creates."""
    token = _CURRENT.set(writes)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def sent_write(
    target: WrittenObject, subresource: str, body: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> SentWrite:
    """Return the note of a write with that body."""
    guard = ""
    if isinstance(body, Mapping):
        metadata, preconditions = body.get("metadata") or {}, body.get("preconditions") or {}
        guard = metadata.get("resourceVersion") or preconditions.get("resourceVersion") or ""
    is_binding = subresource == "binding" and target.resource.plural == PODS.plural
    return SentWrite(target, guard, is_binding)


Exchange = Callable[[Callable[[], None] | None], Coroutine[Any, Any, tuple[dict[str, Any], int]]]
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

    async def _observed(
        self, target: WrittenObject, guard: str, exchange: Exchange, on_send: Callable[[], None] | None
    ) -> tuple[dict[str, Any], int]:
        writes = self._in_progress.setdefault(target, _InProgress())
        writes.count += 1
        version = ""
        try:
            reply, size = await exchange(on_send)
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
