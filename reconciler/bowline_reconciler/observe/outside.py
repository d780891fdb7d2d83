"""Reports the requests that no shard serves: their number as a metric, a log line, and one event about each.

Every leader of a shard counts them; only that of the first shard sends the events.
"""

import logging
from collections.abc import Callable, Collection, Mapping

from prometheus_client import Gauge

from bowline.api import names
from bowline.api.meta import Object, ObjectRef, ObjectUID, key_of, uid_of
from bowline.kube.events import EventNote

log = logging.getLogger(__name__)

# At most this many of the requests are named in a log line, and reported by new events of one check.
NAMED = 5
EVENTS_PER_CHECK = 100


class OutsideShards:
    """The requests outside every shard, as last reported. ``record`` queues an event."""

    def __init__(self, count: Gauge, record: Callable[[EventNote], None]) -> None:
        self._count = count
        self._record = record
        # Those that have their event, while they are outside.
        self._reported: frozenset[ObjectUID] = frozenset()

    def announce(self, requests: Collection[Object], shards: Collection[str], *, sends_events: bool) -> None:
        """Report the requests that are outside now. ``shards``: the selectors of all shards."""
        self._count.set(len(requests))
        if requests:
            examples = ", ".join(str(key_of(request)) for request in list(requests)[:NAMED])
            log.warning("requests that no shard serves", extra={"count": len(requests), "some": examples})
        uids = {uid_of(request): request for request in requests} if sends_events else {}
        unreported = [uid for uid in uids if uid not in self._reported][:EVENTS_PER_CHECK]
        for uid in unreported:
            self._record(_event(uids[uid], shards))
        self._reported = frozenset(unreported) | (self._reported & uids.keys())


def _event(request: Object, shards: Collection[str]) -> EventNote:
    labels: Mapping[str, str] = request["metadata"].get("labels") or {}
    own_labels = ",".join(f"{key}={value}" for key, value in labels.items()) or "none"
    note = (
        f"no shard selects this request, so no reconciler serves it: its labels are {own_labels}; shards: "
        f"{'; '.join(sorted(shards))}. The scheduler must set the labels of a shard, or add a shard for these"
    )
    about = ObjectRef(names.API_VERSION, names.KIND, key_of(request), uid_of(request))
    return EventNote(about, names.EVENT_NOT_SERVED, note, "Warning")
