"""Every write of the reconciler that is not a plugin's: guarded, smallest possible, and answered with what is stored.

A custom resource ignores a UID in a patch, so its writes are guarded by resourceVersion; a pod honours it. A Conflict
is the caller's to resolve: look again, decide again.
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

# At a pod that others write at the same time, the kubelet not among them: it is bound to no node.
_LOOKS = 5

_REMOVED = "{} is not stored on the BindRequest: an admission webhook removes it; exempt BindRequests from it"


class Writer:
    """Writes BindRequests and the pod condition. Raises what the client raises.

    Another project's CRD may not know all fields of the status: the API server then drops them. Which ones is learnt
    from its replies, so that a field that cannot be stored is not taken for a difference for ever.
    """

    def __init__(self, client: KubeClient, wrote: Callable[[ResourceVersion], None]) -> None:
        self._client = client
        self._wrote = wrote
        self._pruned: frozenset[str] = frozenset()
        self.clock = client.clock

    async def status(self, request: BindRequest, block: Mapping[str, Any]) -> BindRequest:
        """Make the request's status ``block``; no write if it is already. Returns the request as stored."""
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
        """Record that effects may exist, before the first of them does."""
        written = await self._finalizers(request, (*request.finalizers, names.FINALIZER))
        if names.FINALIZER not in written.finalizers:
            raise NotStoredError(_REMOVED.format(f"the finalizer {names.FINALIZER}"))
        return written

    async def take_over(self, request: BindRequest) -> BindRequest:
        """Give the request another version, so that nothing is stored that a leader before this one still says."""
        taken = {names.TAKEN_OVER: format_micro_time(self.clock.now())}
        return await self._patch(request, {"metadata": {"annotations": taken}})

    async def drop_finalizer(self, request: BindRequest) -> BindRequest | None:
        """Record that no effects are left. Returns None if the request is gone, which is as good."""
        if names.FINALIZER not in request.finalizers:
            return request
        try:
            return await self._finalizers(request, tuple(f for f in request.finalizers if f != names.FINALIZER))
        except NotFound:
            return None

    async def pin(self, request: BindRequest, pod_uid: ObjectUID) -> BindRequest:
        """Tie the request to the pod of now by an owner reference."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": request.pod_key.name, "uid": pod_uid}
        owners = [*(request.raw["metadata"].get("ownerReferences") or ()), owner]
        written = await self._patch(request, {"metadata": {"ownerReferences": owners}})
        if not written.pod_uid:
            raise NotStoredError(_REMOVED.format("the owner reference to its pod"))
        return written

    async def pod_condition(self, pod: Object, condition: PodBound, since: datetime) -> None:
        """Write the PodBound condition of the pod as it was seen; a pod that is gone or another one gets none.

        Raises what the client raises, a denial by a policy or a webhook included.
        """
        if condition.status == "False":
            return await self.pod_unbound(pod, condition, since)
        with suppress(NotFound):
            await self._condition(key_of(pod), {"uid": uid_of(pod)}, condition, since)
        return None

    async def pod_unbound(self, pod: Object, condition: PodBound, now: datetime) -> None:
        """Say in the pod's PodBound condition why it is not bound, unless it has been bound or is gone since.

        Guarded by the version that was seen to be unbound: what is on its way when somebody else takes over and binds
        the pod must not say so after that. Our own writes of an attempt have changed the pod, too.
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
            # The API server's answer to a UID that is not the stored one: another pod by that name.
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
