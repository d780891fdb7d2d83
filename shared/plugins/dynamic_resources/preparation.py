"""All ResourceClaims of one pod: reserved together before the bind, released together when it is abandoned.

All are read before the first is written, so that a pod which cannot have one of them reserves none. The release reads
the pod live first: claims of a pod that is bound, to any node, are in use, and those of a deleted pod are
kube-controller-manager's to release. Decision 31.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from shared.api.bindrequest import BindRequest, BindRequestSpec, ExtendedResourceClaimAllocation
from shared.api.meta import Object, is_deleting, key_of, uid_of
from shared.api.selectors import Node, reads_labels
from shared.framework.binding.node_labels import NodeLabels
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.framework.waiting import PREREQUISITE
from shared.kube.client import KubeClient
from shared.kube.errors import Invalid, NotFound
from shared.kube.resources import NODES, PODS
from shared.plugins.dynamic_resources.claim import allocation_of, claim_ref
from shared.plugins.dynamic_resources.extended import (
    claim_of,
    not_offered,
    pod_status,
    told_status,
    undecided,
    wanted_extended,
    wanted_new,
)
from shared.plugins.dynamic_resources.leftovers import Leftovers
from shared.plugins.dynamic_resources.metrics import ClaimMetrics
from shared.plugins.dynamic_resources.rules import (
    RequiredClaim,
    missing,
    objection,
    together,
    unreachable,
    wanted_claims,
)
from shared.plugins.dynamic_resources.writer import Claims, busy
from shared.runtime.clock import Clock
from shared.runtime.tasks import shield_write

# Concurrent reads of one pod's claims.
READS = 8


class ClaimReserver:
    """Reserves and releases the claims of pods. Methods raise the client's errors."""

    def __init__(
        self, client: KubeClient, metrics: ClaimMetrics, clock: Clock, bind_timeout: timedelta | None
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._claims = Claims(client, metrics, bind_timeout)
        self._node_labels = NodeLabels(client)
        self._leftovers = Leftovers(client, self._claims, clock)

    # --- before the bind ---

    async def take(self, pod: Object, node: Object | None, spec: BindRequestSpec, state: dict[str, Any]) -> Status:
        """Reserve every claim for the pod; claims already reserved are left unchanged.

        ``node`` is the selected node from the reconciler's cache, None if it does not exist. ``state`` is kept
        between the request's attempts.
        """
        found = await self._read(wanted_claims(pod, spec), pod, node)
        extended = spec.extended_resource_claim_allocation
        against = await self._against_extended(pod, node, extended) if extended is not None else None
        unready = [answer for answer in (*found, against) if isinstance(answer, Status)]
        if unready:
            return together(unready)
        answers = []
        for wanted, claim in (one for one in found if not isinstance(one, Status)):
            answers.append(await self._claims.take(claim, wanted, pod))
            if answers[-1].code not in (Code.OK, Code.WAIT):
                return answers[-1]
        if extended is not None and extended.allocation:
            answers.append(await self._take_extended(pod, extended, state))
        answer = together(answers)
        if answer.code in (Code.OK, Code.WAIT):
            self._metrics.devices(state, pending=answer.code is Code.WAIT, now=self._client.clock.monotonic())
        return answer

    async def _read(
        self, wanted: Sequence[RequiredClaim | Status], pod: Object, node: Object | None
    ) -> list[tuple[RequiredClaim, Object] | Status]:
        """Return each claim as stored, or the status that prevents its use."""
        gate = asyncio.Semaphore(READS)

        async def one(named: RequiredClaim | Status) -> tuple[RequiredClaim, Object] | Status:
            if isinstance(named, Status):
                return named
            async with gate:
                return await self._judged(named, pod, node)

        return list(await asyncio.gather(*map(one, wanted)))

    async def _judged(
        self, one: RequiredClaim, pod: Object, node: Object | None
    ) -> tuple[RequiredClaim, Object] | Status:
        claim = await self._claims.get(one.key)
        if claim is None:
            return missing(one)
        against = objection(claim, one, pod)
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

    async def _against_extended(
        self, pod: Object, node: Object | None, extended: ExtendedResourceClaimAllocation
    ) -> Status | None:
        """Return the failure of the request's decision for extended resources; None if they are available."""
        if extended.allocation:
            label = wanted_extended(pod, extended).label
            return undecided(extended) or await self._unreachable(label, extended.allocation, node)
        if not extended.device_requests and not extended.container_mappings:
            return None
        try:
            return not_offered(await self._client.get(NODES, "", key_of(node).name), extended) if node else _NODE_GONE
        except NotFound:
            return _NODE_GONE

    async def _take_extended(
        self, pod: Object, extended: ExtendedResourceClaimAllocation, state: dict[str, Any]
    ) -> Status:
        """Create the claim, reserve it, and write it to the pod's status for the kubelet."""
        wanted = wanted_extended(pod, extended)
        claim = await self._claims.get(wanted.key)
        if claim is not None and is_deleting(claim):
            # Complete the deletion of an interrupted rollback: no other component would.
            removed = await self._claims.remove(wanted, uid_of(pod))
            if removed.code is not Code.OK:
                return removed
            claim = await self._claims.get(wanted.key)
        if claim is None:
            await self._leftovers.remove(pod)
            wanted = wanted_new(pod, extended)
            claim = await self._claims.create(claim_of(pod, extended))
        if claim is None:
            return busy(wanted)
        if is_deleting(claim):
            why = f"{wanted.label} is still being removed"
            return Status.wait(why, claim_ref(wanted.key, claim), timeout=PREREQUISITE)
        answer = await self._claims.take(claim, wanted, pod)
        if answer.code not in (Code.OK, Code.WAIT):
            return answer
        status = pod_status(wanted.key.name, extended)
        # Compare with this request's own last write: the cached pod may predate a rollback that cleared its status.
        if state.get("told") != status and not await self._tell(pod, status):
            return Status.fatal(f"pod {key_of(pod)} no longer exists", Reason.POD_GONE)
        state["told"] = status
        return answer

    # --- rollback ---

    async def give_back(self, request: BindRequest, spec: BindRequestSpec) -> Status:
        """Undo ``take`` as far as the API objects show it."""
        pod = await self._unbound_pod(request)
        if pod is None:
            return Status.ok()
        answers = []
        extended = spec.extended_resource_claim_allocation
        if extended is not None and extended.allocation:
            answers.append(await self._remove_extended(pod, extended))
        for wanted in wanted_claims(pod, spec):
            if isinstance(wanted, RequiredClaim):
                answers.append(await self._claims.release(wanted, uid_of(pod)))
        return together(answers)

    async def _remove_extended(self, pod: Object, extended: ExtendedResourceClaimAllocation) -> Status:
        wanted = wanted_extended(pod, extended)
        answer = await self._claims.remove(wanted, uid_of(pod))
        # The claim first: without the pod's status its name could be lost.
        if answer.code is Code.OK and told_status(pod):
            await self._tell(pod, None)
        return answer

    async def _unbound_pod(self, request: BindRequest) -> Object | None:
        """Return the request's pod; None if it does not exist or is bound."""
        try:
            pod = await self._client.get(PODS, request.pod_key.namespace, request.pod_key.name)
        except NotFound:
            return None
        return None if uid_of(pod) != request.pod_uid or pod["spec"].get("nodeName") else pod

    async def _tell(self, pod: Object, status: dict[str, Any] | None) -> bool:
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
