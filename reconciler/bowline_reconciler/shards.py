"""Shards: several reconcilers in one cluster. No request has two; one that has none is reported and deletable.

The reconcilers' Leases are the registry: while held, each carries the selector of the requests that its holder
serves. Before a term, the holder checks for Leases with an overlapping selector; the one acquired later yields. The
check is repeated during the term, because selectors change with upgrades.

Anyone may create Leases in a namespace of their own. So a Lease of another namespace counts only if the
ServiceAccount that owns it there has the rights of a reconciler; whoever can write it could use that account as well.
Decision 230.

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
from bowline.kube.resources import BINDREQUESTS, LEASES, SUBJECT_ACCESS_REVIEWS, Selection
from bowline_reconciler.informers import Informers
from bowline_reconciler.observe.outside import OutsideShards

log = logging.getLogger(__name__)

# The label's value on the Leases of one registry; a cluster has one registry.
CLUSTER = "cluster"
CHECK_S = 30.0
WAIT_S = 2.0
# The longest selector, in characters, and the longest time without a renewal of a Lease that counts: whoever wrote
# it, reading it must stay cheap and its effect must end.
MAX_SELECTOR = 4096
MAX_DURATION_S = 3600.0
# Accounts of other namespaces that are reviewed in one check, and for how long a result holds: a release that has
# just been installed has its rights soon.
MAX_REVIEWS = 32
_MAX_REMEMBERED = 1024
_ALLOWED_S, _DENIED_S = 300.0, 10.0


@dataclass(frozen=True, slots=True)
class Shard:
    """An active reconciler, as described by its Lease."""

    lease: ObjectKey
    account: str  # the ServiceAccount in the Lease's namespace that owns it; empty if none does
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
    """Return the shard that a Lease describes; None if it is not held or has no selector that counts."""
    spec, metadata = lease.get("spec") or {}, lease["metadata"]
    text = (metadata.get("annotations") or {}).get(names.SHARD_SELECTOR)
    if not spec.get("holderIdentity") or text is None or len(text) > MAX_SELECTOR:
        return None
    try:
        selector = parse_label_selector(text)
    except ValueError:
        return None  # written by a version with another form of selectors
    return Shard(
        lease=key_of(lease),
        account=account_of(lease),
        selector=selector,
        holder=spec["holderIdentity"],
        acquired_at=spec.get("acquireTime") or "",
        renewed_at=spec.get("renewTime") or "",
        duration_s=min(MAX_DURATION_S, spec.get("leaseDurationSeconds") or 0),
    )


def account_of(lease: Object) -> str:
    """Return the ServiceAccount that owns the Lease; empty if none does, or several do."""
    owners = [
        owner for owner in lease["metadata"].get("ownerReferences") or () if owner.get("kind") == "ServiceAccount"
    ]
    return owners[0]["name"] if len(owners) == 1 else ""


def overlapping(shards: Collection[Shard], lease: ObjectKey, selector: LabelSelector) -> list[Shard]:
    """Return other Leases' shards that can select a request which ``selector`` selects too, by rank."""
    rivals = [shard for shard in shards if shard.lease != lease and shard.selector.overlaps(selector)]
    return sorted(rivals, key=lambda shard: shard.rank)


def access_review(namespace: str, account: str) -> Object:
    """Return the SubjectAccessReview of whether a ServiceAccount has the right that makes a reconciler."""
    return {
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": {
                "group": names.GROUP,
                "resource": names.PLURAL,
                "subresource": "status",
                "verb": "patch",
            },
        }
    }


def release_of(lease: ObjectKey, selector: LabelSelector) -> ObjectKey:
    """Return what identifies a release, whatever its shards: the Lease without the selector's hash."""
    return ObjectKey(lease.namespace, lease.name.rpartition("-")[0] if selector.conditions else lease.name)


class Accounts:
    """Which ServiceAccounts are reconcilers': those that may write the status of BindRequests in all namespaces."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        # By namespace and name: the result, and until when it holds (monotonic).
        self._results: dict[ObjectKey, tuple[bool, float]] = {}

    async def reconcilers(self, accounts: Collection[ObjectKey]) -> Collection[ObjectKey]:
        """Return those of the accounts that are reconcilers'. Raises the client's errors.

        Of accounts without a recent result only ``MAX_REVIEWS`` are reviewed, the others in later calls.
        """
        now = self._client.clock.monotonic()
        if len(self._results) > _MAX_REMEMBERED:
            self._results.clear()
        due = [key for key in accounts if key not in self._results or self._results[key][1] < now]
        for key in due[:MAX_REVIEWS]:
            review = await self._client.create(SUBJECT_ACCESS_REVIEWS, "", access_review(key.namespace, key.name))
            allowed = review["status"].get("allowed") is True
            self._results[key] = (allowed, now + (_ALLOWED_S if allowed else _DENIED_S))
        return {key for key in accounts if key in self._results and self._results[key][0]}


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
        self._accounts = Accounts(client)
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

    async def is_alone(self, lease: ObjectKey) -> bool:
        """Return whether no other reconciler can have worked on this shard's requests: no other Lease counts."""
        selection = Selection(LEASES.as_metadata(), label_selector=f"{names.SHARD_LABEL}={self._registry}")
        try:
            owners = await self._client.list_reduced(selection, lambda other: (key_of(other), account_of(other)))
            elsewhere = {ObjectKey(key.namespace, name) for key, name in owners if key.namespace != lease.namespace}
            proven = await self._accounts.reconcilers({account for account in elsewhere if account.name})
        except KubeError as error:
            log.debug("the reconcilers' Leases cannot be listed", extra={"error": str(error)})
            return False
        return all(
            key == lease or (key.namespace != lease.namespace and ObjectKey(key.namespace, name) not in proven)
            for key, name in owners
        )

    async def free(self, lease: ObjectKey) -> None:
        """Wait until no other reconciler serves any of this shard's requests. Raises no errors of the API server."""
        while True:
            rivals = overlapping(await self._live(lease.namespace), lease, self._selector)
            self._note(rivals, lease)
            if not rivals:
                return
            await asyncio.sleep(WAIT_S)

    async def is_outranked(self, lease: ObjectKey) -> bool:
        """Return whether a reconciler that serves some of this shard's requests was active before this one."""
        live = await self._live(lease.namespace)
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

    async def _live(self, namespace: str) -> list[Shard]:
        """Return the shards with renewed Leases that reconcilers own; none if the Leases cannot be listed.

        ``namespace``: Bowline's own, where no Lease needs a proof.
        """
        selection = Selection(LEASES, label_selector=f"{names.SHARD_LABEL}={self._registry}")
        try:
            held = await self._client.list_reduced(selection, held_shard)
            shards = [shard for shard in held if shard is not None]
            elsewhere = {
                shard.lease: ObjectKey(shard.lease.namespace, shard.account)
                for shard in shards
                if shard.lease.namespace != namespace
            }
            proven = await self._accounts.reconcilers({key for key in elsewhere.values() if key.name})
        except Forbidden as error:
            self._report(
                "the verbs list on leases and create on subjectaccessreviews are not both granted, overlapping "
                f"shards are not noticed: {error.message}"
            )
            return []
        except KubeError as error:
            self._report(f"the shards of the cluster cannot be listed: {error}")
            return []
        shards = [shard for shard in shards if shard.lease not in elsewhere or elsewhere[shard.lease] in proven]
        now = self._client.clock.monotonic()
        # A Lease may have no renewTime: then its first sight is the only one.
        before = self._records
        self._records = {
            shard.lease: record
            if (record := before.get(shard.lease)) is not None and record[0] == shard.renewed_at
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
        shards = await self._live(lease.namespace)
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
