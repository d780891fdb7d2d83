"""All of the reconciler's own writes: minimal patches with preconditions; each returns the stored object.

The API server ignores a UID in a custom resource's patch, so writes to BindRequests carry the resourceVersion; for
pods it enforces the UID. On a Conflict the caller reads and decides again.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from reconciler.decide.outcome import PodBound
from reconciler.decide.status import pruned_fields, status_patch
from shared.api import names
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import (
    Object,
    ObjectKey,
    ObjectUID,
    ResourceVersion,
    format_micro_time,
    format_time,
    key_of,
    uid_of,
    version_of,
)
from shared.kube.client import KubeClient, PatchType
from shared.kube.errors import Conflict, Invalid, NotFound, NotStoredError
from shared.kube.resources import BINDREQUESTS, PODS

log = logging.getLogger(__name__)

# Conflicts on an unbound pod, from other writers; no kubelet writes to it yet.
_LOOKS = 5

_REMOVED = "{} is not stored on the BindRequest: an admission webhook removes it; exempt BindRequests from it"


class Writer:
    """Writes BindRequests and the pod condition. Methods raise the client's errors.

    Another project's CRD may lack status fields, which the API server then drops. The dropped fields are learnt from
    its replies, so that a field that cannot be stored does not cause a write on every reconcile.
    """

    def __init__(self, client: KubeClient, wrote: Callable[[ResourceVersion], None]) -> None:
        self._client = client
        self._wrote = wrote
        self._pruned: frozenset[str] = frozenset()
        self.clock = client.clock

    async def status(self, request: BindRequest, block: Mapping[str, Any]) -> BindRequest:
        """Set the request's status to ``block``, without a write if it is equal. Returns the request as stored."""
        kept = {key: value for key, value in block.items() if key not in self._pruned}
        patch = status_patch(request.status, kept)
        if patch is None:
            return request
        stored = await self._patch(request, {"status": patch}, subresource="status")
        pruned = self._pruned | pruned_fields(patch, stored.status)
        if pruned != self._pruned:
            log.warning(
                "the CustomResourceDefinition does not keep all of the status; install Bowline's for the rest",
                extra={"dropped": sorted(pruned)},
            )
            self._pruned = pruned
        return stored

    async def add_finalizer(self, request: BindRequest) -> BindRequest:
        """Add the finalizer, before any side effect exists. Raises NotStoredError if a webhook removes it."""
        written = await self._finalizers(request, (*request.finalizers, names.FINALIZER))
        if names.FINALIZER not in written.finalizers:
            raise NotStoredError(_REMOVED.format(f"the finalizer {names.FINALIZER}"))
        return written

    async def take_over(self, request: BindRequest) -> BindRequest:
        """Fence: change the resourceVersion, so that a previous leader's writes in flight fail with a Conflict."""
        taken = {names.TAKEN_OVER: format_micro_time(self.clock.now())}
        return await self._patch(request, {"metadata": {"annotations": taken}})

    async def drop_finalizer(self, request: BindRequest) -> BindRequest | None:
        """Remove the finalizer: no side effects are left. Returns None if the request no longer exists."""
        if names.FINALIZER not in request.finalizers:
            return request
        try:
            return await self._finalizers(request, tuple(f for f in request.finalizers if f != names.FINALIZER))
        except NotFound:
            return None

    async def pin(self, request: BindRequest, pod_uid: ObjectUID) -> BindRequest:
        """Tie the request to the present pod by an owner reference. Raises NotStoredError if a webhook removes it."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": request.pod_key.name, "uid": pod_uid}
        owners = [*(request.raw["metadata"].get("ownerReferences") or ()), owner]
        written = await self._patch(request, {"metadata": {"ownerReferences": owners}})
        if not written.pod_uid:
            raise NotStoredError(_REMOVED.format("the owner reference to its pod"))
        return written

    async def pod_condition(self, pod: Object, condition: PodBound, since: datetime) -> None:
        """Write the PodBound condition of this pod; not if it no longer exists or was replaced.

        Raises the client's errors, including a denial by a policy or a webhook.
        """
        if condition.status == "False":
            return await self.pod_unbound(pod, condition, since)
        with suppress(NotFound):
            await self._condition(key_of(pod), {"uid": uid_of(pod)}, condition, since)
        return None

    async def pod_unbound(self, pod: Object, condition: PodBound, now: datetime) -> None:
        """Report in PodBound=False why the pod is not bound, unless it was bound or deleted meanwhile.

        The write requires the resourceVersion that was seen unbound: a write still in flight when another leader
        binds the pod must fail. Own writes of the attempt change the version as well, hence the retries with a new
        read.
        """
        key, uid = key_of(pod), uid_of(pod)
        with suppress(NotFound):
            for tries_left in reversed(range(_LOOKS)):
                guard = {"uid": uid, "resourceVersion": version_of(pod)}
                try:
                    return await self._condition(key, guard, condition, now)
                except Conflict:
                    if not tries_left:
                        raise
                pod = await self._client.get(PODS, key.namespace, key.name)
                if uid_of(pod) != uid or pod["spec"].get("nodeName"):
                    return None
        return None

    async def _condition(self, pod: ObjectKey, guard: Mapping[str, str], condition: PodBound, now: datetime) -> None:
        body = {
            "metadata": dict(guard),
            "status": {
                "conditions": [
                    {
                        "type": names.CONDITION_POD_BOUND,
                        "status": condition.status,
                        "reason": condition.reason,
                        "message": condition.message,
                        "lastTransitionTime": format_time(now),
                    }
                ]
            },
        }
        try:
            await self._client.patch(
                PODS,
                pod.namespace,
                pod.name,
                body,
                subresource="status",
                content_type=PatchType.STRATEGIC,
                field_manager=names.FIELD_MANAGER_RECONCILER,
            )
        except Invalid as error:
            # The API server's reply to a UID other than the stored one: the pod was replaced.
            if not any(cause.field == "metadata.uid" for cause in error.causes):
                raise

    async def _finalizers(self, request: BindRequest, finalizers: tuple[str, ...]) -> BindRequest:
        return await self._patch(request, {"metadata": {"finalizers": list(finalizers)}})

    async def _patch(self, request: BindRequest, body: dict[str, Any], subresource: str = "") -> BindRequest:
        body["metadata"] = {**body.get("metadata", {}), "resourceVersion": request.resource_version}
        reply = await self._client.patch(
            BINDREQUESTS,
            request.key.namespace,
            request.key.name,
            body,
            subresource=subresource,
            field_manager=names.FIELD_MANAGER_RECONCILER,
        )
        written = decode_bind_request(reply, request)
        self._wrote(written.resource_version)
        return written
