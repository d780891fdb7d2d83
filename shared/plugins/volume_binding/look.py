"""One evaluation of the volumes of a request's pod, and the writes that follow from it.

An evaluation starts from live PVCs, never from the result of an earlier one; a request's state only distinguishes a
provisioner's rejection from a PVC whose provisioning was never requested. Between the choice of a volume and its
entry in the assume cache there is no await: that prevents two pods of this process from choosing the same volume.
Decision 55.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from shared.api.meta import Object, ObjectKey, ObjectUID
from shared.api.selectors import Node
from shared.framework.binding.groups import merge_waits
from shared.framework.binding.post import refusal
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.kube.client import KubeClient
from shared.kube.errors import Conflict, Forbidden, Invalid, NotFound
from shared.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES
from shared.plugins.volume_binding.assumptions import AssumeCache
from shared.plugins.volume_binding.metrics import DYNAMIC, STATIC, VolumeMetrics
from shared.plugins.volume_binding.rules import (
    BindVolume,
    Bound,
    Provision,
    ProvisioningRejected,
    ProvisioningStarted,
    Unbound,
    capacity_hint,
    choose,
    claim_ref_patch,
    judge_claim,
    judge_taken,
    judge_unbound,
    judge_volume,
    selected_node_patch,
    waits_for_volumes,
)
from shared.plugins.volume_binding.storage import Storage
from shared.plugins.volume_binding.volumes import (
    PersistentVolumeClaim,
    PodVolume,
    Volume,
    read_claim,
    read_volume,
    wanted_claims,
)

# Consecutive evaluations while other writers change the same objects; they write a few times each.
LOOKS = 5
# Below this time, the provisioner's capacities are not worth two reads.
_PATIENCE_S = 4.0


@dataclass(slots=True)
class PodVolumes:
    """State kept between the evaluations of one request. Losing it costs at most one repeated write."""

    asked: dict[ObjectUID, float] = field(default_factory=dict)  # by PVC: since when requested here
    hints: dict[str, str] = field(default_factory=dict)  # by PVC name
    verified: set[str] = field(default_factory=set)  # names of volumes that are usable on the node
    # By PVC: kind (static, dynamic) and monotonic time of the write of this process that requested its volume.
    written: dict[ObjectUID, tuple[str, float]] = field(default_factory=dict)
    taken: dict[ObjectUID, str] = field(default_factory=dict)  # by PVC: the volume whose claimRef this request wrote


@dataclass(frozen=True, slots=True)
class Subject:
    """The input of an evaluation."""

    request: ObjectKey
    pod: Object
    node: Object
    remembered: PodVolumes


class _Retry(Exception):  # noqa: N818 - not an error: another writer was faster
    """What was read is stale; evaluate again. ``live``: with live reads instead of the cache."""

    def __init__(self, *, live: bool = False) -> None:
        super().__init__()
        self.live = live


class VolumeBinder:
    """Evaluates and writes, for all requests."""

    def __init__(
        self,
        client: KubeClient,
        storage: Storage,
        assumptions: AssumeCache,
        metrics: VolumeMetrics,
        bind_timeout: timedelta | None,
    ) -> None:
        self._client = client
        self._storage = storage
        self._assumptions = assumptions
        self._metrics = metrics
        self._bind_timeout = bind_timeout

    async def settle(self, subject: Subject) -> Status:
        """Evaluate until there is a result. Of the client's errors only InfrastructureError is raised."""
        live = False
        wanted = wanted_claims(subject.pod)
        for looks_before in range(LOOKS):
            try:
                return await self._look(subject, wanted, live=live)
            except _Retry as again:
                # The second failure in a row suggests a stale cache, which would offer a taken volume repeatedly.
                live = live or again.live or looks_before > 0
            except (Forbidden, Invalid) as error:
                return refusal(error.message)
        return Status.wait("the pod's claims or their volumes keep changing", *(one.ref for one in wanted))

    async def _look(self, subject: Subject, wanted: Sequence[PodVolume], *, live: bool) -> Status:
        node, claims = await asyncio.gather(self._storage.node(subject.node), self._storage.claims(wanted))
        if node is None:
            name = subject.node["metadata"]["name"]
            return Status.fatal(f"node {name} is gone", Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE)
        verdicts = [await self._judged(one, claim, subject, node) for one, claim in zip(wanted, claims, strict=True)]
        bound = [verdict.claim for verdict in verdicts if isinstance(verdict, Bound)]
        self._observe(bound, subject.remembered)
        # A terminal failure takes precedence over all waits.
        against = _final(verdicts) or await self._conflict(bound, node, subject.remembered)
        if against is not None:
            return against
        pending = [verdict for verdict in verdicts if isinstance(verdict, Status)]
        if pending:
            return replace(merge_waits(pending), plugin="")
        asked = [verdict.claim for verdict in verdicts if isinstance(verdict, ProvisioningStarted)]
        unbound = [verdict for verdict in verdicts if isinstance(verdict, Unbound)]
        choices = await self._choose(subject, unbound, node, live=live) if unbound else []
        if isinstance(choices, Status):
            return choices
        taking = [choice for choice in choices if isinstance(choice, BindVolume)]
        # Before the first write: the watch event of its effect may precede the write's own response.
        self._storage.expect(subject.request, [*asked, *(choice.claim for choice in choices)])
        taking = [replace(take, volume=await self._take(take, subject.remembered)) for take in taking]
        for choice in choices:
            if isinstance(choice, Provision):
                asked.append(await self._ask(choice.claim, node, subject.remembered))
        if not taking and not asked:
            return Status.ok()
        hints = await self._hints(asked, node, subject.remembered)
        return waits_for_volumes(taking, asked, hints, self._bind_timeout)

    async def _judged(
        self, wanted: PodVolume, claim: PersistentVolumeClaim | None, subject: Subject, node: Node
    ) -> Status | Bound | ProvisioningStarted | Unbound:
        verdict = judge_claim(wanted, claim, subject.pod)
        if not isinstance(verdict, PersistentVolumeClaim):
            return verdict
        cls = await self._storage.class_of(verdict)
        judged = judge_unbound(verdict, cls, node, verdict.uid in subject.remembered.asked)
        if isinstance(judged, ProvisioningRejected):
            self._metrics.handed_back.inc()
            return judged.status
        return judged

    async def _conflict(
        self, bound: Sequence[PersistentVolumeClaim], node: Node, remembered: PodVolumes
    ) -> Status | None:
        """Return the failure of a bound PVC whose volume cannot be used on the node; None if there is none."""
        unverified = [claim for claim in bound if claim.volume_name not in remembered.verified]
        volumes = await self._storage.volumes([claim.volume_name for claim in unverified])
        for claim, volume in zip(unverified, volumes, strict=True):
            status = judge_volume(claim, volume, node)
            if status.code is not Code.OK:
                return status
            remembered.verified.add(claim.volume_name)
        return None

    # --- choose ---

    async def _choose(
        self, subject: Subject, unbound: Sequence[Unbound], node: Node, *, live: bool
    ) -> list[BindVolume | Provision] | Status:
        chosen = await self._chosen_before(unbound, subject.remembered)
        if isinstance(chosen, Status):
            if not live:
                # The PVC was read before the volume: it may have been bound to another volume in between.
                raise _Retry(live=True)
            return chosen
        claims = [wants.claim for wants in unbound]
        mirrored = None if live else self._storage.mirrored_volumes(claims, node)
        volumes = mirrored if mirrored is not None else await self._storage.volumes_for([c.key for c in claims])
        # No await from here until the choices are in the assume cache.
        candidates = {volume.name: volume for volume in volumes} | {volume.name: volume for volume in chosen}
        choices = choose(unbound, node, candidates.values(), self._is_taken)
        if isinstance(choices, Status):
            if choices.code is Code.FATAL and mirrored is not None:
                # The cache may lack a volume, and this failure would be terminal.
                raise _Retry(live=True)
            return choices
        for choice in choices:
            if isinstance(choice, BindVolume):
                self._assumptions.assume(subject.request, choice.claim.uid, choice.volume.name)
                subject.remembered.verified.add(choice.volume.name)
        return choices

    async def _chosen_before(self, unbound: Sequence[Unbound], remembered: PodVolumes) -> list[Volume] | Status:
        """Return, live, the volumes assumed by an earlier evaluation that are still available.

        A Status reports that a volume which this request had reserved was withdrawn since.
        """
        claims = [(wants.claim, self._assumptions.volume_of(wants.claim.uid)) for wants in unbound]
        named = [(claim, name) for claim, name in claims if name is not None]
        volumes = await self._storage.volumes([name for _, name in named])
        standing = []
        for (claim, name), volume in zip(named, volumes, strict=True):
            if volume is not None:
                withdrawn = judge_taken(claim, volume) if remembered.taken.get(claim.uid) == name else None
                if withdrawn is not None:
                    return withdrawn
                standing.append(volume)
            gone = volume is None or volume.deleting or not (volume.claim is None or volume.is_for(claim))
            if gone and self._assumptions.volume_of(claim.uid) == name:
                self._assumptions.withdraw(claim.uid)
        return standing

    def _is_taken(self, volume: Volume, claim: PersistentVolumeClaim) -> bool:
        ours = self._assumptions.volume_of(claim.uid)
        return self._assumptions.is_taken(volume.name, claim.uid) or ours not in (None, volume.name)

    # --- write ---

    async def _take(self, take: BindVolume, remembered: PodVolumes) -> Volume:
        """Reserve the volume for the PVC; returns the volume as stored."""
        patch = claim_ref_patch(take.volume, take.claim)
        if patch is None:
            return take.volume
        since = self._client.clock.monotonic()
        stored = await self._patch(PERSISTENTVOLUMES, ObjectKey("", take.volume.name), patch)
        remembered.written[take.claim.uid] = (STATIC, since)
        remembered.taken[take.claim.uid] = take.volume.name
        return read_volume(stored)

    async def _ask(self, claim: PersistentVolumeClaim, node: Node, remembered: PodVolumes) -> PersistentVolumeClaim:
        since = self._client.clock.monotonic()
        stored = await self._patch(PERSISTENTVOLUMECLAIMS, claim.key, selected_node_patch(claim, node))
        remembered.written[claim.uid] = (DYNAMIC, since)
        return read_claim(stored)

    def _observe(self, bound: Sequence[PersistentVolumeClaim], remembered: PodVolumes) -> None:
        """Observe the time until PVCs were bound whose volumes this process had requested."""
        for claim in bound:
            written = remembered.written.pop(claim.uid, None)
            if written is not None:
                how, since = written
                self._metrics.bound.labels(how).observe(self._client.clock.monotonic() - since)

    async def _patch(self, resource: Any, key: ObjectKey, patch: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.patch(resource, key.namespace, key.name, patch)
        except (Conflict, NotFound) as error:
            raise _Retry from error

    async def _hints(
        self, asked: Sequence[PersistentVolumeClaim], node: Node, remembered: PodVolumes
    ) -> dict[str, str]:
        """Record when provisioning was first observed; returns hints by PVC name for those that take long."""
        now = self._client.clock.monotonic()
        for claim in asked:
            since = remembered.asked.setdefault(claim.uid, now)
            if now - since < _PATIENCE_S or claim.key.name in remembered.hints:
                continue
            cls = await self._storage.class_of(claim)
            capacities = await self._storage.capacities(cls.provisioner) if cls is not None else None
            hint = capacity_hint(claim, node, capacities) if capacities is not None else ""
            remembered.hints[claim.key.name] = hint
        return remembered.hints


def _final(verdicts: Sequence[object]) -> Status | None:
    """Return the first verdict that ends the request; None if there is none."""
    return next((one for one in verdicts if isinstance(one, Status) and one.code is not Code.WAIT), None)
