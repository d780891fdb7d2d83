"""Which versions of an object this client has written: a watch event that shows one is no news to its process.

An event may arrive before the reply of the write that caused it. So while a write of the object is in progress, the
event is kept, and judged when the reply is there. A write without a reply, and one whose version was forgotten, is
taken for another client's: that costs a needless look, never a missed change.

Only a write that requires the resourceVersion of its object counts as its author's: the reply of another one may have
the version of another client's write, because the object had the content already.

Valid for an event of a watch, which shows every version. A list shows the last one only: an own version may contain
another client's change that nothing else has shown. Pure.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bowline.kube.late_writes import WrittenObject
from bowline.kube.resources import BINDREQUESTS, PODS

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
