"""One evaluation of the volumes of a request's pod, and the writes that follow from it.

An evaluation starts from live PVCs, never from the result of an earlier one; a request's state only distinguishes a
provisioner's rejection from a PVC whose provisioning was never requested. Between the choice of a volume and its
entry in the assume cache there is no await: that prevents two pods of this process from choosing the same volume.
It makes kube-scheduler's one write. Writing the PVC as well would conflict with the volume controller, which repeats
a conflicting sync only after 15 s.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey, ObjectUID
from bowline.api.pod_volumes import PodVolume, pod_volumes
from bowline.api.selectors import Labels, Node
from bowline.framework.binding.post import denied_status
from bowline.framework.interface.status import Done, Fatal, Status, Waiting, merge_waits
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import (
    ApiError,
    Conflict,
    Expired,
    KubeError,
    NotFound,
    NotStoredError,
    Unreadable,
    with_failure,
)
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, Resource
from bowline.plugins.volume_binding.rules import (
    BindVolume,
    Bound,
    Choice,
    Provision,
    ProvisioningStarted,
    Unbound,
    check_claim,
    check_count,
    check_reserved,
    check_unbound,
    check_volume,
    choose,
    claim_ref_patch,
    selected_node_patch,
    waits_for_volumes,
)
from bowline.plugins.volume_binding.storage import Storage
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim, Volume, read_claim, read_volume

# Consecutive evaluations while other writers change the same objects; they write a few times each.
MAX_EVALUATIONS = 5


@dataclass(slots=True)
class BindState:
    """State kept between the evaluations of one request. Losing it costs at most one repeated write."""

    requested: set[ObjectUID] = field(default_factory=set)  # PVCs whose provisioning was seen
    # Of the volumes that were chosen and not yet seen bound, by name: the node's labels, by which they are usable.
    chosen: dict[str, Labels] = field(default_factory=dict)
    reserved_volumes: dict[ObjectUID, str] = field(
        default_factory=dict
    )  # by PVC: the volume whose claimRef was written


class _Retry(Exception):  # noqa: N818 - not an error: another writer was faster
    """What was read is stale; evaluate again. ``live``: with live reads instead of the cache."""

    def __init__(self, *, live: bool = False) -> None:
        super().__init__()
        self.live = live


class VolumeBinder:
    """Evaluates and writes, for all requests. ``bind_timeout``: how long a wait for the volumes may last."""

    def __init__(self, client: ObjectClient, storage: Storage, bind_timeout: timedelta | None) -> None:
        self._client = client
        self._storage = storage
        self._bind_timeout = bind_timeout
        self._assume_cache = storage.assume_cache

    async def bind_pod_volumes(self, request: BindRequest, pod: Object, node: Object, state: BindState) -> Status:
        """Evaluate until there is a result: OK once every PVC has a volume that is usable on the node.

        Of the client's errors only InfrastructureError, Expired and Unreadable are raised.
        """
        live = False
        volumes = pod_volumes(pod)
        count_status = check_count(volumes)
        if not isinstance(count_status, Done):
            return count_status
        for evaluation in range(MAX_EVALUATIONS):
            try:
                return await self._evaluate(request, pod, node, volumes, state, live=live)
            except _Retry as retry:
                # The second failure in a row suggests a stale cache, which would offer a taken volume repeatedly.
                live = live or retry.live or evaluation > 0
            except (Expired, Unreadable):
                raise
            except ApiError as error:
                return denied_status(error.message).about(*(volume.ref for volume in volumes))
        return Status.wait("the pod's PVCs or their volumes keep changing", *(volume.ref for volume in volumes))

    async def withdraw(self, request: BindRequest, pod: Object | None) -> Status:
        """Withdraw what this request has asked of provisioners, for the PVCs that have no volume. Idempotent.

        ``pod``: None if it does not exist any more. A provisioner has answered once a volume of the PVC exists, or
        when it has removed the node. Raises the client's errors: that of one PVC, which cannot be decoded or whose
        change a policy denies or undoes, once the others are withdrawn.
        """
        for _ in range(MAX_EVALUATIONS):
            failure: KubeError | None
            claims, failure = await self._storage.claims_of(request.key.namespace, pod)
            requested_claims = [
                claim for claim in claims if claim.requested_by == request.uid and not claim.volume_name
            ]
            keys = [claim.key for claim in requested_claims]
            volumes = await self._storage.volumes_for(keys) if keys else ()
            try:
                for claim in requested_claims:
                    if not any(volume.is_for(claim) for volume in volumes):
                        patch = selected_node_patch(claim, None, None)
                        try:
                            await self._patch(PERSISTENTVOLUMECLAIMS, claim.key, patch)
                        except KubeError as error:
                            failure = with_failure(failure, error)
            except _Retry:
                continue
            if failure is not None:
                raise failure
            return Status.ok()
        return Status.retry("the pod's PVCs keep changing")

    async def _without_lost_node(self, claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
        """Return the PVC as if no volume was requested for it, if that is for a node that does not exist."""
        is_elsewhere = claim.selected_node not in ("", node) and not claim.volume_name
        if is_elsewhere and not await self._storage.has_node(claim.selected_node):
            return replace(claim, selected_node="")
        return claim

    async def _evaluate(
        self,
        request: BindRequest,
        pod: Object,
        cached_node: Object,
        volumes: Sequence[PodVolume],
        state: BindState,
        *,
        live: bool,
    ) -> Status:
        node, claims = await asyncio.gather(self._storage.node(cached_node), self._storage.claims(volumes))
        if node is None:
            why = f"node {cached_node['metadata']['name']} no longer exists"
            return Status.fatal(why, Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE)
        checks = [
            await self._check(volume, claim, pod, node, request.uid, state)
            for volume, claim in zip(volumes, claims, strict=True)
        ]
        bound = [check.claim for check in checks if isinstance(check, Bound)]
        # A terminal failure takes precedence over all waits.
        statuses = [check for check in checks if isinstance(check, Status)]
        final = next((status for status in statuses if not isinstance(status, Waiting)), None)
        final = final or await self._node_conflict(bound, node, state)
        if final is not None:
            return final
        if waits := [status for status in statuses if isinstance(status, Waiting)]:
            return merge_waits(waits)
        provisioning = [check.claim for check in checks if isinstance(check, ProvisioningStarted)]
        unbound = [check for check in checks if isinstance(check, Unbound)]
        choices = await self._choose(request.key, unbound, node, state, live=live) if unbound else []
        if isinstance(choices, Status):
            return choices.about(*(entry.claim.ref for entry in unbound))
        # Before the first write: the watch event of its effect may precede the write's own response.
        self._storage.bound_claims.expect(request.key, [*provisioning, *(choice.claim for choice in choices)])
        binding = [
            replace(choice, volume=await self._reserve(choice, state))
            for choice in choices
            if isinstance(choice, BindVolume)
        ]
        for choice in choices:
            if isinstance(choice, Provision):
                provisioning.append(await self._provision(choice.claim, node, request.uid, state))
        if not binding and not provisioning:
            return Status.ok()
        state.requested.update(claim.uid for claim in provisioning)
        return waits_for_volumes(binding, provisioning, self._bind_timeout)

    async def _check(
        self,
        volume: PodVolume,
        claim: PersistentVolumeClaim | None,
        pod: Object,
        node: Node,
        request_uid: ObjectUID,
        state: BindState,
    ) -> Status | Bound | ProvisioningStarted | Unbound:
        usable_claim = check_claim(volume, claim, pod)
        if isinstance(usable_claim, Status):
            return usable_claim.about(volume.ref)
        if isinstance(usable_claim, Bound):
            return usable_claim
        cls = await self._storage.class_of(usable_claim)
        usable_claim = await self._without_lost_node(usable_claim, node.name)
        # A provisioner removes the node alone; whoever withdraws a request removes its record, too.
        was_requested = usable_claim.uid in state.requested and usable_claim.requested_by == request_uid
        result = check_unbound(usable_claim, cls, node, was_requested)
        return result.about(volume.ref) if isinstance(result, Status) else result

    async def _node_conflict(
        self, bound: Iterable[PersistentVolumeClaim], node: Node, state: BindState
    ) -> Status | None:
        """Return the failure of a bound PVC whose volume cannot be used on the node; None if there is none."""
        claims = [claim for claim in bound if state.chosen.pop(claim.volume_name, None) != node.labels]
        volumes = await self._storage.volumes([claim.volume_name for claim in claims])
        for claim, volume in zip(claims, volumes, strict=True):
            status = check_volume(claim, volume, node)
            if not isinstance(status, Done):
                return status.about(claim.ref)
        return None

    # --- choose ---

    async def _choose(
        self, request: ObjectKey, unbound: Sequence[Unbound], node: Node, state: BindState, *, live: bool
    ) -> list[Choice] | Status:
        assumed_volumes = await self._assumed_volumes(unbound, state)
        if isinstance(assumed_volumes, Status):
            if not live:
                # The PVC was read before the volume: it may have been bound to another volume in between.
                raise _Retry(live=True)
            return assumed_volumes
        claims = [entry.claim for entry in unbound]
        cached_volumes = None if live else self._storage.cached_volumes(claims, node)
        volumes = cached_volumes
        if volumes is None:
            volumes = await self._storage.volumes_for([claim.key for claim in claims])
        # No await from here until the choices are in the assume cache.
        candidates = {volume.name: volume for volume in (*volumes, *assumed_volumes)}
        choices = choose(unbound, node, candidates.values(), self._is_taken)
        if isinstance(choices, Status):
            if isinstance(choices, Fatal) and cached_volumes is not None:
                # The cache may lack a volume, and this failure would be terminal.
                raise _Retry(live=True)
            return choices
        for choice in choices:
            if isinstance(choice, BindVolume):
                self._assume_cache.assume(request, choice.claim.uid, choice.volume.name)
                state.chosen[choice.volume.name] = node.labels
        return choices

    async def _assumed_volumes(self, unbound: Sequence[Unbound], state: BindState) -> list[Volume] | Status:
        """Return, live, the volumes assumed by an earlier evaluation that still exist.

        A Status reports that a volume which this request had reserved was withdrawn since.
        """
        claims = [(entry.claim, self._assume_cache.volume_of(entry.claim.uid)) for entry in unbound]
        named = [(claim, name) for claim, name in claims if name is not None]
        volumes = await self._storage.volumes([name for _, name in named])
        existing = []
        for (claim, name), volume in zip(named, volumes, strict=True):
            if volume is not None:
                withdrawn = check_reserved(claim, volume) if state.reserved_volumes.get(claim.uid) == name else None
                if withdrawn is not None:
                    return withdrawn
                existing.append(volume)
            unusable = volume is None or volume.deleting or not (volume.claim is None or volume.is_for(claim))
            if unusable and self._assume_cache.volume_of(claim.uid) == name:
                self._assume_cache.withdraw(claim.uid)
        return existing

    def _is_taken(self, volume: Volume, claim: PersistentVolumeClaim) -> bool:
        assumed_volume = self._assume_cache.volume_of(claim.uid)
        return self._assume_cache.is_taken(volume.name, claim.uid) or assumed_volume not in (None, volume.name)

    # --- write ---

    async def _reserve(self, choice: BindVolume, state: BindState) -> Volume:
        """Reserve the volume for the PVC; returns the volume as stored."""
        patch = claim_ref_patch(choice.volume, choice.claim)
        if patch is None:
            return choice.volume
        volume = await self._patch(PERSISTENTVOLUMES, ObjectKey("", choice.volume.name), patch)
        state.reserved_volumes[choice.claim.uid] = choice.volume.name
        return read_volume(volume)

    async def _provision(
        self, claim: PersistentVolumeClaim, node: Node, request_uid: ObjectUID, state: BindState
    ) -> PersistentVolumeClaim:
        """Request provisioning for the PVC on the node; returns the PVC as stored."""
        patch = selected_node_patch(claim, node.name, request_uid)
        try:
            updated_claim = await self._patch(PERSISTENTVOLUMECLAIMS, claim.key, patch)
        except NotStoredError as error:
            undo = selected_node_patch(read_claim(error.stored), None, None)
            await self._patch(PERSISTENTVOLUMECLAIMS, claim.key, undo)
            raise
        return read_claim(updated_claim)

    async def _patch(self, resource: Resource, key: ObjectKey, patch: Object) -> dict[str, object]:
        try:
            return await self._client.patch(resource, key.namespace, key.name, dict(patch), essential=patch)
        except (Conflict, NotFound) as error:
            raise _Retry from error
