"""All ResourceClaims of one pod: reserved together before the bind, released together when it is abandoned.

All are read before the first is written, so that a pod which cannot have one of them reserves none. The release reads
the pod live first: claims of a pod that is bound, to any node, are in use, and those of a deleted pod are
kube-controller-manager's to release.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequest, BindRequestSpec, ExtendedResourceClaimAllocation
from bowline.api.meta import (
    Object,
    ObjectKey,
    ObjectRef,
    ObjectUID,
    has_ended,
    is_deleting,
    key_of,
    uid_of,
    version_of,
)
from bowline.api.selectors import Node, reads_labels
from bowline.framework.interface.node_labels import NodeLabels
from bowline.framework.interface.status import Done, Fatal, Status, Transient, Waiting, merge_statuses
from bowline.framework.interface.waiting import PREREQUISITE
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import (
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    NotStoredError,
    UnrecognizedReply,
    with_failure,
)
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import BINDREQUESTS, NODES, PODGROUPS, PODS, Selection
from bowline.plugins.dynamic_resources.claim import (
    allocation_of,
    claim_ref,
    finalizers_of,
    pod_group_name,
    requests_of,
)
from bowline.plugins.dynamic_resources.claim_client import ClaimClient, contention_status
from bowline.plugins.dynamic_resources.extended import (
    claim_of,
    extended_claim_status,
    new_extended,
    pod_status,
    required_extended,
    resources_not_offered,
    undecided_allocation,
)
from bowline.plugins.dynamic_resources.rules import (
    RequiredClaim,
    claim_conflict,
    is_first_use,
    missing_claim,
    required_claims,
    unreachable,
)
from bowline.plugins.dynamic_resources.taint_watch import TaintWatch
from bowline.runtime.tasks import shield_write

# Concurrent reads of one pod's claims.
CONCURRENT_READS = 8
# Of a write to a pod that other clients change meanwhile.
POD_TRIES = 5


class ClaimReserver:
    """Reserves and releases the claims of pods. Methods raise the client's errors."""

    def __init__(
        self,
        client: ObjectClient,
        bind_timeout: timedelta,
        taints: TaintWatch,
    ) -> None:
        self._client = client
        self._taints = taints
        self._claims = ClaimClient(client, bind_timeout)
        self._node_labels = NodeLabels(client)
        # Requests that are being rolled back: unfinished, but they bind no pod.
        self._withdrawn: dict[ObjectKey, ObjectUID] = {}

    @property
    def withdrawn(self) -> int:
        """The number of requests that are being rolled back."""
        return len(self._withdrawn)

    def forget(self, request: ObjectKey) -> None:
        """Drop what is remembered of a request: it has ended, or is attempted again."""
        self._withdrawn.pop(request, None)

    def clear(self) -> None:
        """Drop what is remembered of all requests: this process is not the leader any more."""
        self._withdrawn.clear()

    # --- before the bind ---

    async def reserve(self, pod: Object, node: Object | None, spec: BindRequestSpec, state: dict[str, Any]) -> Status:
        """Reserve every claim for the pod; claims already reserved are left unchanged.

        ``node`` is the selected node from the reconciler's cache, None if it does not exist. ``state`` is kept
        between the request's attempts.
        """
        pod_group = await self._pod_group(pod)
        if isinstance(pod_group, Status):
            return pod_group
        claims = await self._read(required_claims(pod, spec, pod_group), node)
        decision = spec.extended_resource_claim_allocation
        conflict = await self._extended_conflict(pod, node, decision) if decision is not None else None
        obstacles = [answer for answer in (*claims, conflict) if isinstance(answer, Status)]
        if obstacles:
            return merge_statuses(obstacles)
        answers = []
        for requirement, claim in (entry for entry in claims if not isinstance(entry, Status)):
            answer = await self._claims.reserve(claim, requirement)
            answers.append(answer.about(claim_ref(requirement.key)))
            if not isinstance(answers[-1], Done | Waiting):
                return answers[-1]
        if decision is not None and decision.allocation:
            answers.append(await self._reserve_extended(pod, decision, state))
        return merge_statuses(answers)

    async def _pod_group(self, pod: Object) -> Object | Status | None:
        """Return the PodGroup that may share claims with the pod; a Status while it does not exist.

        None if the pod has no PodGroup or the API server does not serve PodGroups: then every claim is the pod's own.
        """
        name = pod_group_name(pod)
        if not name or not pod["spec"].get("resourceClaims"):
            return None
        key = ObjectKey(key_of(pod).namespace, name)
        try:
            return await self._client.get(PODGROUPS, key.namespace, name)
        except NotFound:
            ref = ObjectRef(PODGROUPS.api_version, PODGROUPS.kind, key)
            return Status.wait(f"the pod's PodGroup {key} does not exist yet", ref, timeout=PREREQUISITE)
        except (ApiError, UnrecognizedReply) as error:
            if error.code == 404 and not await self._client.serves(PODGROUPS):
                return None
            raise

    async def _read(
        self, requirements: Sequence[RequiredClaim | Status], node: Object | None
    ) -> list[tuple[RequiredClaim, Object] | Status]:
        """Return each claim as stored, or the status that prevents its use."""
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def read(requirement: RequiredClaim | Status) -> tuple[RequiredClaim, Object] | Status:
            if isinstance(requirement, Status):
                return requirement
            async with gate:
                return await self._check(requirement, node)

        return list(await asyncio.gather(*map(read, requirements)))

    async def _check(self, requirement: RequiredClaim, node: Object | None) -> tuple[RequiredClaim, Object] | Status:
        claim = await self._claims.get(requirement.key)
        if claim is None:
            return missing_claim(requirement)
        conflict = claim_conflict(claim, requirement)
        if conflict is None:
            # The stored allocation is what the pod gets; the request may have none for a claim that is reserved
            # already.
            allocation = allocation_of(claim) or requirement.allocation or {}
            conflict = await self._unreachable(requirement.label, allocation, node)
            if conflict is None and is_first_use(claim, requirement):
                conflict = await self._taints.refusal(self._client, requirement.label, allocation, requests_of(claim))
        return conflict.about(claim_ref(requirement.key)) if conflict else (requirement, claim)

    async def _unreachable(self, label: str, allocation: Mapping[str, Any], node: Object | None) -> Status | None:
        """Return the failure of devices that are not usable on the node. Node labels are read only if the selector
        needs them.
        """
        if node is None:
            return _NODE_GONE
        if not reads_labels(allocation.get("nodeSelector")):
            return unreachable(label, allocation, Node(key_of(node).name))
        node_with_labels = await self._node_labels.get(node)
        return _NODE_GONE if node_with_labels is None else unreachable(label, allocation, node_with_labels)

    async def _extended_conflict(
        self, pod: Object, node: Object | None, decision: ExtendedResourceClaimAllocation
    ) -> Status | None:
        """Return the failure of the request's decision for extended resources; None if they are available."""
        if decision.allocation:
            label = required_extended(pod, decision).label
            return (
                undecided_allocation(decision)
                or await self._unreachable(label, decision.allocation, node)
                or await self._taints.refusal(self._client, label, decision.allocation, decision.device_requests)
            )
        if not decision.device_requests and not decision.container_mappings:
            return None
        try:
            return (
                resources_not_offered(await self._client.get(NODES, "", key_of(node).name), decision)
                if node
                else _NODE_GONE
            )
        except NotFound:
            return _NODE_GONE

    async def _reserve_extended(
        self, pod: Object, decision: ExtendedResourceClaimAllocation, state: dict[str, Any]
    ) -> Status:
        """Create the claim, reserve it, and write it to the pod's status for the kubelet."""
        requirement = required_extended(pod, decision)
        claim = await self._claims.get(requirement.key)
        if claim is not None and is_deleting(claim):
            # Complete the deletion of an interrupted rollback: no other component would.
            removal = await self._claims.remove(requirement)
            if not isinstance(removal, Done):
                return removal
            claim = await self._claims.get(requirement.key)
        if claim is None:
            requirement = new_extended(pod, decision)
            claim = await self._claims.create(claim_of(pod, decision))
        if claim is None:
            return contention_status(requirement)
        if is_deleting(claim):
            why = f"{requirement.label} is still being removed"
            return Status.wait(why, claim_ref(requirement.key, claim), timeout=PREREQUISITE)
        answer = await self._claims.reserve(claim, requirement)
        if not isinstance(answer, Done | Waiting):
            return answer
        status = pod_status(requirement.key.name, decision)
        # Both this request's own last write and the pod: the cached one may predate a rollback that cleared its
        # status, and another client may have changed it since the write.
        if state.get("pod_status") != status or extended_claim_status(pod) != status:
            result = await self._patch_pod_status(pod, status)
            if not isinstance(result, Done):
                return result
            state["pod_status"] = status
        return answer

    # --- rollback ---

    async def unreserve(self, request: BindRequest, spec: BindRequestSpec) -> Status:
        """Undo ``reserve`` as far as the API objects show it.

        Raises the client's errors: that of one claim, which cannot be decoded or whose change a policy denies or
        undoes, once the others are released.
        """
        pod = await self._unbound_pod(request)
        if pod is None:
            return Status.ok()
        self._withdrawn[request.key] = request.uid
        steps: list[Callable[[], Awaitable[Status]]] = []
        decision = spec.extended_resource_claim_allocation
        if decision is not None and decision.allocation:
            steps.append(partial(self._remove_extended, pod, decision))
        group = await self._pod_group(pod)
        is_used = partial(is_group_used, self._client, pod, self._withdrawn)
        steps += [
            partial(self._claims.release, requirement, is_used)
            for requirement in required_claims(pod, spec, None if isinstance(group, Status) else group)
            if isinstance(requirement, RequiredClaim)
        ]
        answers: list[Status] = []
        failure: KubeError | None = None
        for step in steps:
            try:
                answers.append(await step())
            except KubeError as error:
                failure = with_failure(failure, error)
        status = merge_statuses(answers)
        if failure is not None and isinstance(status, Done):
            raise failure
        return status

    async def _remove_extended(self, pod: Object, decision: ExtendedResourceClaimAllocation) -> Status:
        requirement = required_extended(pod, decision)
        answer = await self._claims.remove(requirement)
        # The claim first: without the pod's status its name is lost. It is named by what is not undone, too.
        if isinstance(answer, Done) and not answer.reasons and extended_claim_status(pod):
            result = await self._patch_pod_status(pod, None)
            return result if not isinstance(result, Fatal) else answer
        return answer

    async def _unbound_pod(self, request: BindRequest) -> Object | None:
        """Return the request's pod; None if it does not exist or is bound."""
        pod = await self._pod(request.pod_key)
        return None if pod is None or uid_of(pod) != request.pod_uid or pod["spec"].get("nodeName") else pod

    async def _patch_pod_status(self, pod: Object, status: dict[str, Any] | None) -> Done | Fatal | Transient:
        """Patch the pod's claim status in the version that was read, so that it is known as this process's write.

        Fatal if the pod does not exist or was replaced, Transient if it is bound meanwhile or changes too often.
        """
        key, uid = key_of(pod), uid_of(pod)
        for _ in range(POD_TRIES):
            guard = {"uid": uid, "resourceVersion": version_of(pod)}
            body = {"metadata": guard, "status": {"extendedResourceClaimStatus": status}}
            essential = None if status is None else body  # API servers keep a stored one
            try:
                await shield_write(
                    self._client.patch(PODS, key.namespace, key.name, body, subresource="status", essential=essential)
                )
                return Status.ok()
            except NotStoredError as error:
                if status is not None:
                    await self._patch_pod_status(error.stored, None)
                raise
            except Conflict:
                live_pod = await self._pod(key)
            except NotFound:
                live_pod = None
            if live_pod is None or uid_of(live_pod) != uid:
                return Status.fatal(f"pod {key} no longer exists", Reason.POD_GONE)
            if live_pod["spec"].get("nodeName"):
                break
            pod = live_pod
        return Transient((f"pod {key} was bound meanwhile, or changes too often",))

    async def _pod(self, key: ObjectKey) -> Object | None:
        try:
            return await self._client.get(PODS, key.namespace, key.name)
        except NotFound:
            return None


async def is_group_used(
    client: ObjectClient, pod: Object, withdrawn: Mapping[ObjectKey, ObjectUID], is_failed: bool
) -> bool:
    """Return whether another pod of the pod's PodGroup is on a node or, unless the devices have failed, has a request
    that may bind it. As kube-scheduler, which counts the pods that it has assumed.

    A pod of which only the metadata can be read may be one of the group. ``withdrawn``: the requests that are being
    rolled back.
    """
    namespace, group, own_uid = key_of(pod).namespace, pod_group_name(pod), uid_of(pod)
    # The requests first: a pod whose request finishes between the lists is bound in the second.
    selection = Selection(BINDREQUESTS, namespace)
    read_holder = partial(holder, withdrawn=withdrawn)
    requesters = frozenset() if is_failed else frozenset(await client.list_reduced(selection, read_holder))

    def is_user(other: Object) -> bool:
        if uid_of(other) == own_uid:
            return False
        if "spec" not in other:
            return True
        is_placed = bool(other["spec"].get("nodeName")) or other["metadata"]["name"] in requesters
        return is_placed and pod_group_name(other) == group

    return any(await client.list_reduced(Selection(PODS, namespace), is_user))


def holder(request: Object, withdrawn: Mapping[ObjectKey, ObjectUID]) -> str:
    """Return the name of the request's pod if the request may have a claim and bind the pod; empty if not.

    A request that decides claims has the finalizer from before it reserves one until it has released them.
    """
    spec = request.get("spec") or {}
    may_hold = names.FINALIZER in finalizers_of(request) or not spec.get("resourceClaimAllocations")
    is_over = has_ended(request) or withdrawn.get(key_of(request)) == uid_of(request)
    return str(spec.get("podName") or "") if may_hold and not is_over else ""


_NODE_GONE = Status.fatal("the selected node does not exist", Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE)
