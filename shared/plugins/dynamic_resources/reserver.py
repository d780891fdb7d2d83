"""All ResourceClaims of one pod: reserved together before the bind, released together when it is abandoned.

All are read before the first is written, so that a pod which cannot have one of them reserves none. The release reads
the pod live first: claims of a pod that is bound, to any node, are in use, and those of a deleted pod are
kube-controller-manager's to release. Decision 31.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.api import names
from shared.api.bindrequest import BindRequest, BindRequestSpec, ExtendedResourceClaimAllocation
from shared.api.meta import Object, ObjectKey, ObjectUID, is_deleting, key_of, parse_time, uid_of
from shared.api.selectors import Node, reads_labels
from shared.framework.binding.metrics import PluginMetrics
from shared.framework.binding.node_labels import NodeLabels
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.framework.waiting import PREREQUISITE
from shared.kube.client import KubeClient
from shared.kube.errors import Invalid, NotFound
from shared.kube.resources import NODES, PODS, RESOURCECLAIMS
from shared.plugins.dynamic_resources.claim import allocation_of, claim_ref
from shared.plugins.dynamic_resources.claim_client import ClaimClient, contention_status
from shared.plugins.dynamic_resources.extended import (
    claim_name,
    claim_of,
    extended_claim_status,
    new_extended,
    pod_status,
    required_extended,
    resources_not_offered,
    undecided_allocation,
)
from shared.plugins.dynamic_resources.rules import (
    RequiredClaim,
    claim_conflict,
    merge_statuses,
    missing_claim,
    required_claims,
    unreachable,
)
from shared.runtime.clock import Clock
from shared.runtime.shared_read import SharedReads
from shared.runtime.tasks import shield_write

# Concurrent reads of one pod's claims.
CONCURRENT_READS = 8

LIST_TTL_S = 30.0
# Claims by the UID of their controller pod.
_ByController = dict[ObjectUID, list[ObjectKey]]


class ClaimReserver:
    """Reserves and releases the claims of pods. Methods raise the client's errors."""

    def __init__(
        self, client: KubeClient, metrics: PluginMetrics, clock: Clock, bind_timeout: timedelta | None
    ) -> None:
        self._client = client
        self._device_wait = metrics.histogram(
            "device_wait_seconds", "Time from the first check of devices that are not ready until they are."
        )
        self._claims = ClaimClient(client, metrics, bind_timeout)
        self._node_labels = NodeLabels(client)
        self._leftovers = LeftoverClaims(client, self._claims, clock)

    # --- before the bind ---

    async def reserve(self, pod: Object, node: Object | None, spec: BindRequestSpec, state: dict[str, Any]) -> Status:
        """Reserve every claim for the pod; claims already reserved are left unchanged.

        ``node`` is the selected node from the reconciler's cache, None if it does not exist. ``state`` is kept
        between the request's attempts.
        """
        found = await self._read(required_claims(pod, spec), pod, node)
        extended = spec.extended_resource_claim_allocation
        against = await self._extended_conflict(pod, node, extended) if extended is not None else None
        unready = [answer for answer in (*found, against) if isinstance(answer, Status)]
        if unready:
            return merge_statuses(unready)
        answers = []
        for wanted, claim in (one for one in found if not isinstance(one, Status)):
            answers.append(await self._claims.reserve(claim, wanted, pod))
            if answers[-1].code not in (Code.OK, Code.WAIT):
                return answers[-1]
        if extended is not None and extended.allocation:
            answers.append(await self._reserve_extended(pod, extended, state))
        answer = merge_statuses(answers)
        if answer.code in (Code.OK, Code.WAIT):
            self._observe_wait(state, is_waiting=answer.code is Code.WAIT)
        return answer

    def _observe_wait(self, state: dict[str, Any], *, is_waiting: bool) -> None:
        """Start, or end and observe, the wait for a pod's devices. ``state`` has its begin, in monotonic seconds."""
        now = self._client.clock.monotonic()
        if is_waiting:
            state.setdefault("waiting_since", now)
        elif "waiting_since" in state:
            self._device_wait.observe(now - state.pop("waiting_since"))

    async def _read(
        self, wanted: Sequence[RequiredClaim | Status], pod: Object, node: Object | None
    ) -> list[tuple[RequiredClaim, Object] | Status]:
        """Return each claim as stored, or the status that prevents its use."""
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def one(named: RequiredClaim | Status) -> tuple[RequiredClaim, Object] | Status:
            if isinstance(named, Status):
                return named
            async with gate:
                return await self._check(named, pod, node)

        return list(await asyncio.gather(*map(one, wanted)))

    async def _check(
        self, one: RequiredClaim, pod: Object, node: Object | None
    ) -> tuple[RequiredClaim, Object] | Status:
        claim = await self._claims.get(one.key)
        if claim is None:
            return missing_claim(one)
        against = claim_conflict(claim, one, pod)
        if against is None:
            # The stored allocation is what the pod gets; the request may have none for a claim that is reserved
            # already.
            allocation = allocation_of(claim) or one.allocation or {}
            against = await self._unreachable(one.label, allocation, node)
        return against or (one, claim)

    async def _unreachable(self, label: str, allocation: Mapping[str, Any], node: Object | None) -> Status | None:
        """Return the failure of devices that are not usable on the node. Node labels are read only if the selector
        needs them.
        """
        if node is None:
            return _NODE_GONE
        if not reads_labels(allocation.get("nodeSelector")):
            return unreachable(label, allocation, Node(key_of(node).name))
        labelled = await self._node_labels.get(node)
        return _NODE_GONE if labelled is None else unreachable(label, allocation, labelled)

    async def _extended_conflict(
        self, pod: Object, node: Object | None, extended: ExtendedResourceClaimAllocation
    ) -> Status | None:
        """Return the failure of the request's decision for extended resources; None if they are available."""
        if extended.allocation:
            label = required_extended(pod, extended).label
            return undecided_allocation(extended) or await self._unreachable(label, extended.allocation, node)
        if not extended.device_requests and not extended.container_mappings:
            return None
        try:
            return (
                resources_not_offered(await self._client.get(NODES, "", key_of(node).name), extended)
                if node
                else _NODE_GONE
            )
        except NotFound:
            return _NODE_GONE

    async def _reserve_extended(
        self, pod: Object, extended: ExtendedResourceClaimAllocation, state: dict[str, Any]
    ) -> Status:
        """Create the claim, reserve it, and write it to the pod's status for the kubelet."""
        wanted = required_extended(pod, extended)
        claim = await self._claims.get(wanted.key)
        if claim is not None and is_deleting(claim):
            # Complete the deletion of an interrupted rollback: no other component would.
            removed = await self._claims.remove(wanted, uid_of(pod))
            if removed.code is not Code.OK:
                return removed
            claim = await self._claims.get(wanted.key)
        if claim is None:
            await self._leftovers.remove(pod)
            wanted = new_extended(pod, extended)
            claim = await self._claims.create(claim_of(pod, extended))
        if claim is None:
            return contention_status(wanted)
        if is_deleting(claim):
            why = f"{wanted.label} is still being removed"
            return Status.wait(why, claim_ref(wanted.key, claim), timeout=PREREQUISITE)
        answer = await self._claims.reserve(claim, wanted, pod)
        if answer.code not in (Code.OK, Code.WAIT):
            return answer
        status = pod_status(wanted.key.name, extended)
        # Compare with this request's own last write: the cached pod may predate a rollback that cleared its status.
        if state.get("pod_status") != status and not await self._patch_pod_status(pod, status):
            return Status.fatal(f"pod {key_of(pod)} no longer exists", Reason.POD_GONE)
        state["pod_status"] = status
        return answer

    # --- rollback ---

    async def unreserve(self, request: BindRequest, spec: BindRequestSpec) -> Status:
        """Undo ``reserve`` as far as the API objects show it."""
        pod = await self._unbound_pod(request)
        if pod is None:
            return Status.ok()
        answers = []
        extended = spec.extended_resource_claim_allocation
        if extended is not None and extended.allocation:
            answers.append(await self._remove_extended(pod, extended))
        for wanted in required_claims(pod, spec):
            if isinstance(wanted, RequiredClaim):
                answers.append(await self._claims.release(wanted, uid_of(pod)))
        return merge_statuses(answers)

    async def _remove_extended(self, pod: Object, extended: ExtendedResourceClaimAllocation) -> Status:
        wanted = required_extended(pod, extended)
        answer = await self._claims.remove(wanted, uid_of(pod))
        # The claim first: without the pod's status its name could be lost.
        if answer.code is Code.OK and extended_claim_status(pod):
            await self._patch_pod_status(pod, None)
        return answer

    async def _unbound_pod(self, request: BindRequest) -> Object | None:
        """Return the request's pod; None if it does not exist or is bound."""
        try:
            pod = await self._client.get(PODS, request.pod_key.namespace, request.pod_key.name)
        except NotFound:
            return None
        return None if uid_of(pod) != request.pod_uid or pod["spec"].get("nodeName") else pod

    async def _patch_pod_status(self, pod: Object, status: dict[str, Any] | None) -> bool:
        """Patch the pod's claim status; False if the pod does not exist or its name belongs to another pod."""
        key = key_of(pod)
        body = {"metadata": {"uid": uid_of(pod)}, "status": {"extendedResourceClaimStatus": status}}
        try:
            await shield_write(self._client.patch(PODS, key.namespace, key.name, body, subresource="status"))
        except NotFound:
            return False
        except Invalid as error:
            # The API server's error for a UID that differs from the stored one.
            if not any(cause.field == "metadata.uid" for cause in error.causes):
                raise
            return False
        return True


_NODE_GONE = Status.fatal("the selected node does not exist", Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE)


class LeftoverClaims:
    """Finds and removes claims for a pod's extended resources that another binder created and left behind.

    They have generated names, so only a list of the namespace's claims finds them, by annotation and owner. They
    exist after a migration: the binder that ran before this process was interrupted, or its rollback deleted a claim
    but left the finalizer, and the claim keeps its devices until its pod is deleted. So only pods older than this
    process are checked, and all pods of a namespace share one list. Methods raise the client's errors.
    """

    def __init__(self, client: KubeClient, claims: ClaimClient, clock: Clock) -> None:
        self._client = client
        self._claims = claims
        self._since: datetime = clock.now()
        self._lists: SharedReads[str, _ByController] = SharedReads(LIST_TTL_S, clock.monotonic)

    async def remove(self, pod: Object) -> None:
        """Remove the pod's leftover claims, which frees their devices."""
        created = parse_time(pod["metadata"].get("creationTimestamp"))
        if created is None or created >= self._since:
            return
        namespace = pod["metadata"]["namespace"]
        found = await self._lists.get(namespace, lambda: self._list(namespace))
        for key in found.get(uid_of(pod), ()):
            if key.name != claim_name(pod):
                label = f"the claim of the pod's extended resources ({key.name})"
                await self._claims.remove(RequiredClaim(label, key, None, of_pod=True), uid_of(pod))

    async def _list(self, namespace: str) -> _ByController:
        found: _ByController = {}
        for claim in await self._client.list_all(RESOURCECLAIMS.as_metadata(), namespace):
            metadata = claim["metadata"]
            if (metadata.get("annotations") or {}).get(names.EXTENDED_RESOURCE_CLAIM) != "true":
                continue
            for owner in metadata.get("ownerReferences") or ():
                if owner.get("controller"):
                    found.setdefault(owner["uid"], []).append(ObjectKey(namespace, metadata["name"]))
        return found
