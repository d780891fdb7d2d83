"""Shards: several reconcilers in one cluster. No request has two; one that has none is reported and deletable.

The reconcilers' Leases are the registry: while held, each carries the selector of the requests that its holder
serves. Before a term, the holder checks for Leases with an overlapping selector; the one acquired later yields. The
check is repeated during the term, because selectors change with upgrades.

A request outside every selector is served by no reconciler. The webhook, which does not know the shards, set its
finalizer at creation, so it could not be deleted. The holder of the first Lease, by namespace and name, adopts such
requests when they are deleted, rolls back what may have been prepared and drops the finalizer. Decision 123.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from bowline.api import names
from bowline.api.label_selector import LabelSelector, parse_label_selector
from bowline.api.meta import Object, ObjectKey, is_deleting, key_of
from bowline.kube.client import KubeClient
from bowline.kube.errors import Forbidden, KubeError
from bowline.kube.resources import BINDREQUESTS, LEASES, Selection
from bowline_reconciler.informers import Informers
from bowline_reconciler.observe.outside import OutsideShards

log = logging.getLogger(__name__)

# The label's value on the Leases of one registry; a cluster has one registry.
CLUSTER = "cluster"
CHECK_S = 30.0
WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Shard:
    """An active reconciler, as described by its Lease."""

    lease: ObjectKey
    selector: LabelSelector
    holder: str
    acquired_at: str  # by the holder's clock
    renewed_at: str
    duration_s: float

    @property
    def rank(self) -> tuple[str, ObjectKey]:
        """Of two overlapping shards, the lower rank is active."""
        return self.acquired_at, self.lease


def held_shard(lease: Object) -> Shard | None:
    """Return the shard that a Lease describes; None if it is not held or not a reconciler's."""
    spec, annotations = lease.get("spec") or {}, lease["metadata"].get("annotations") or {}
    if not spec.get("holderIdentity") or names.SHARD_SELECTOR not in annotations:
        return None
    try:
        selector = parse_label_selector(annotations[names.SHARD_SELECTOR])
    except ValueError:
        return None  # written by a version with another form of selectors
    return Shard(
        lease=key_of(lease),
        selector=selector,
        holder=spec["holderIdentity"],
        acquired_at=spec.get("acquireTime") or "",
        renewed_at=spec.get("renewTime") or "",
        duration_s=spec.get("leaseDurationSeconds") or 0,
    )


def overlapping(shards: Collection[Shard], lease: ObjectKey, selector: LabelSelector) -> list[Shard]:
    """Return other Leases' shards that can select a request which ``selector`` selects too, by rank."""
    rivals = [shard for shard in shards if shard.lease != lease and shard.selector.overlaps(selector)]
    return sorted(rivals, key=lambda shard: shard.rank)


def release_of(lease: ObjectKey, selector: LabelSelector) -> ObjectKey:
    """Return what identifies a release, whatever its shards: the Lease without the selector's hash."""
    return ObjectKey(lease.namespace, lease.name.rpartition("-")[0] if selector.conditions else lease.name)


class Shards:
    """The registry, for one reconciler."""

    def __init__(
        self,
        client: KubeClient,
        informers: Informers,
        outside: OutsideShards,
        selector: str,
        wake: Callable[[ObjectKey], None],
        registry: str = CLUSTER,
    ) -> None:
        self._client = client
        self._registry = registry
        self._informers = informers
        self._outside = outside
        self._selector = parse_label_selector(selector)
        self._wake = wake
        # Why this process is not active although it could be; for readiness and logs.
        self.conflict: str | None = None
        self.waiting = False  # for another shard to end, possibly one of the same release
        # The renewTime last seen of each Lease, and when this process first saw it (monotonic): clocks are not
        # compared.
        self._records: dict[ObjectKey, tuple[str, float]] = {}
        self._last_report = ""

    @property
    def metadata(self) -> dict[str, dict[str, str]]:
        """The labels and annotations of this reconciler's Lease."""
        return {
            "labels": {names.SHARD_LABEL: self._registry},
            "annotations": {names.SHARD_SELECTOR: str(self._selector)},
        }

    async def free(self, lease: ObjectKey) -> None:
        """Wait until no other reconciler serves any of this shard's requests. Raises no errors of the API server."""
        while True:
            rivals = overlapping(await self._live(), lease, self._selector)
            self._note(rivals, lease)
            if not rivals:
                return
            await asyncio.sleep(WAIT_S)

    async def is_outranked(self, lease: ObjectKey) -> bool:
        """Return whether a reconciler that serves some of this shard's requests was active before this one."""
        live = await self._live()
        own_shard = next((shard for shard in live if shard.lease == lease), None)
        rivals = [
            shard for shard in overlapping(live, lease, self._selector) if own_shard and shard.rank < own_shard.rank
        ]
        self._note(rivals, lease)
        return bool(rivals)

    async def watch(self, lease: ObjectKey) -> None:
        """Check the registry periodically during a term; returns when another reconciler outranks this one."""
        while not await self.is_outranked(lease):
            try:
                await self._report_outside(lease)
            except KubeError as error:
                log.warning("requests outside every shard cannot be listed", extra={"error": str(error)})
            await asyncio.sleep(CHECK_S)

    async def _live(self) -> list[Shard]:
        """Return the shards with renewed Leases; none if the Leases cannot be listed."""
        try:
            leases = await self._client.list_all(LEASES, label_selector=f"{names.SHARD_LABEL}={self._registry}")
        except Forbidden as error:
            self._report(
                f"the verb list on leases is not granted, overlapping shards are not noticed: {error.message}"
            )
            return []
        except KubeError as error:
            self._report(f"the shards of the cluster cannot be listed: {error}")
            return []
        shards = [shard for lease in leases if (shard := held_shard(lease)) is not None]
        now = self._client.clock.monotonic()
        records = self._records
        self._records = {
            shard.lease: records[shard.lease]
            if records.get(shard.lease, ("", 0.0))[0] == shard.renewed_at
            else (shard.renewed_at, now)
            for shard in shards
        }
        return [shard for shard in shards if now - self._records[shard.lease][1] <= shard.duration_s]

    def _note(self, rivals: Collection[Shard], lease: ObjectKey) -> None:
        self.waiting = bool(rivals)
        if not rivals:
            self.conflict, self._last_report = None, ""
            return
        selectors = "; ".join(f"{shard.lease} serves {str(shard.selector) or 'all requests'!r}" for shard in rivals)
        own_shard = str(self._selector) or "all requests"
        why = f"this reconciler serves {own_shard!r}, which overlaps: {selectors}; give each its own requests"
        self._report(why)
        # The same release with another selector is being replaced: its successor is ready, and waits for its end.
        release = release_of(lease, self._selector)
        strangers = [shard for shard in rivals if release_of(shard.lease, shard.selector) != release]
        self.conflict = why if strangers else None

    def _report(self, why: str) -> None:
        """Log a reason once, until it changes."""
        if why != self._last_report:
            log.error("shards overlap or are not known", extra={"why": why})
        self._last_report = why

    async def _report_outside(self, lease: ObjectKey) -> None:
        """Report the requests that no shard serves; adopt the deleting ones if this is the first shard."""
        shards = await self._live()
        selectors = [self._selector, *(shard.selector for shard in shards)]
        outside: list[Object] = []
        adopted_keys: list[ObjectKey] = []
        if all(selector.conditions for selector in selectors):
            async for page in self._client.pages(Selection(BINDREQUESTS.as_metadata())):
                for item in page["items"] or ():
                    labels = item["metadata"].get("labels") or {}
                    if not any(selector.selects(labels) for selector in selectors):
                        outside.append(item)
                        if is_deleting(item) and names.FINALIZER in (item["metadata"].get("finalizers") or ()):
                            adopted_keys.append(key_of(item))
        is_first = min([lease, *(shard.lease for shard in shards)]) == lease
        self._outside.announce(outside, {str(selector) for selector in selectors}, sends_events=is_first)
        keys = adopted_keys if is_first else []
        self._informers.adopt(frozenset(keys))
        for key in keys:
            self._wake(key)
