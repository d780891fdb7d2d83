"""All of the reconciler's own writes: minimal patches with preconditions; each returns the stored object. And events.

Writes to BindRequests carry the resourceVersion of what they were decided on; those to pods the UID. On a Conflict
the caller reads and decides again. Pods' conditions and nominations are written in the background
(``pod_conditions``).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase, decode_bind_request, effects_record
from bowline.api.meta import Object, ObjectRef, ObjectUID, format_micro_time, is_reduced, pod_owner, status_of
from bowline.api.reduction import reduced_request
from bowline.api.request_facts import as_annotation, carried_status
from bowline.kube.client import KubeClient
from bowline.kube.errors import Conflict, NotFound
from bowline.kube.events import EventNote
from bowline.kube.object_client import Body
from bowline.kube.resources import BINDREQUESTS
from bowline.kube.stored import Difference, not_stored
from bowline_reconciler.decide.actions import Event, Nomination, Report
from bowline_reconciler.drive.pod_conditions import PodConditions

log = logging.getLogger(__name__)

# Every CRD keeps it, and schedulers read it in the status alone.
_PHASE = "phase"


class Writer:
    """Writes BindRequests, pods' conditions and events. Writing methods raise the client's errors.

    ``record`` queues an event. ``on_write`` is called with the request as each write has stored it.

    Another project's CRD may lack status fields, which the API server then drops. An annotation of the request holds
    what its reply lacks (``bowline.api.request_facts``), in a write of its own, because a write of the status changes
    no metadata; what it holds is not written again. It says nothing of other requests: a policy may have changed this
    one, and a CRD may be replaced.
    """

    def __init__(
        self,
        client: KubeClient,
        record: Callable[[EventNote], None],
        on_write: Callable[[BindRequest], None],
        conditions: PodConditions,
    ) -> None:
        self._client = client
        self._record = record
        self._on_write = on_write
        self._dropped_keys: frozenset[str] = frozenset()  # that were logged
        self._conditions = conditions

    async def patch_status(self, request: BindRequest, status: Mapping[str, Any]) -> BindRequest:
        """Set the request's status, without a write if it is equal. Returns the request as stored.

        Raises NotStoredError if a webhook changes a final phase.
        """
        # Of a Succeeded request nothing is carried.
        carried = {} if status.get(_PHASE) == Phase.SUCCEEDED else carried_status(request.raw)
        storable = {key: value for key, value in status.items() if key not in carried}
        patch, stored_request = status_patch(status_of(request.raw), storable), request
        if patch is not None:
            stored_request = await self._send(request, {"status": patch}, "status", _final_phase(patch))
        stored_status = status_of(stored_request.raw)
        dropped = {key: value for key, value in status.items() if value is not None and key not in stored_status}
        if dropped.keys() - self._dropped_keys:
            self._dropped_keys |= dropped.keys()
            log.warning(
                "the CustomResourceDefinition does not keep all of the status; install Bowline's for the rest",
                extra={"dropped": sorted(dropped)},
            )
        dropped.pop(_PHASE, None)
        if stored_request.phase is Phase.SUCCEEDED or dropped == carried_status(stored_request.raw):
            return stored_request
        annotations = {names.CARRIED_STATUS: as_annotation(dropped) if dropped else None}
        try:
            return await self._send(stored_request, {"metadata": {"annotations": annotations}})
        except (Conflict, NotFound):
            if stored_request.phase is Phase.PENDING:
                raise
            return stored_request  # its scheduler deletes it: the failure is reported

    async def write_report(self, request: BindRequest, report: Report, pod: Object | None) -> None:
        """Set the status, then queue the event and the pod's report; without a pod the event is the request's."""
        await self.patch_status(request, report.status)
        if report.event is not None:
            self.record_event(request, report.event, on_pod=pod is not None)
        if pod is not None and (report.condition is not None or report.nomination is not None):
            self._conditions.schedule(pod, report.condition, report.nomination)

    def nominate(self, pod: Object, nomination: Nomination) -> None:
        """Queue a nomination of the pod, or the end of one."""
        self._conditions.schedule(pod, None, nomination)

    async def add_finalizer(self, request: BindRequest, effects: Collection[str]) -> BindRequest:
        """Add the finalizer and the plugins of which side effects may exist, before any does.

        A finalizer without a record stands for all plugins, and stays so. The resourceVersion changes in any case: a
        status write of a previous leader fails then, which would describe another attempt. Raises NotStoredError if a
        webhook changes one of them.
        """
        finalizers = dict.fromkeys((*request.finalizers, names.FINALIZER))
        record = _pod_record(request)
        if not request.has_finalizer or request.effects is not None:
            record[names.EFFECTS] = effects_record({*effects, *(request.effects or ())})
        if request.has_finalizer:
            record[names.TAKEN_OVER] = format_micro_time(self._client.clock.now())
        body = {"metadata": {"finalizers": list(finalizers), "annotations": record}}
        return await self._send(request, body, essential=body)

    async def drop_finalizer(self, request: BindRequest) -> BindRequest | None:
        """Remove the finalizer: no side effects are left. Returns None if the request no longer exists.

        Raises NotStoredError if a webhook puts it back.
        """
        if not request.has_finalizer:
            return request
        try:
            finalizers = [name for name in request.finalizers if name != names.FINALIZER]
            stored_request = await self._send(request, {"metadata": {"finalizers": finalizers}})
        except NotFound:
            return None
        if stored_request.has_finalizer:
            kept = Difference("metadata.finalizers", finalizers, list(stored_request.finalizers))
            raise not_stored(BINDREQUESTS, request.key, kept, stored_request.raw)
        return stored_request

    async def set_owner(self, request: BindRequest, pod_uid: ObjectUID) -> BindRequest:
        """Tie the request to the present pod by an owner reference, and record the pod's UID beside it.

        Raises NotStoredError if a webhook changes one of them.
        """
        owner = pod_owner(request.pod_key.name, pod_uid)
        owners = [*(request.raw["metadata"].get("ownerReferences") or ()), owner]
        body = {"metadata": {"ownerReferences": owners, "annotations": {names.POD_UID: pod_uid}}}
        return await self._send(request, body, essential=body)

    def record_event(self, request: BindRequest, event: Event, on_pod: bool = True) -> None:
        """Queue an event about the request, and about the pod if ``on_pod``. That of a bind is the pod's only."""
        about = ObjectRef(names.API_VERSION, names.KIND, request.key, request.uid)
        pod = ObjectRef("v1", "Pod", request.pod_key, request.pod_uid)
        if on_pod:
            self._record(EventNote(pod, event.reason, event.note, event.type, about))
        if not on_pod or event.reason != names.EVENT_BOUND:
            self._record(EventNote(about, event.reason, event.note, event.type, pod if on_pod else None))

    async def _send(
        self, request: BindRequest, body: dict[str, Any], subresource: str = "", essential: Body | None = None
    ) -> BindRequest:
        body["metadata"] = {**body.get("metadata", {}), "resourceVersion": request.resource_version}
        # Of a request that is not decoded the reply is not either, except its metadata.
        is_unreadable = is_reduced(request.raw)
        reply = await self._client.patch(
            BINDREQUESTS.as_metadata() if is_unreadable else BINDREQUESTS,
            request.key.namespace,
            request.key.name,
            body,
            subresource=subresource,
            field_manager=names.FIELD_MANAGER_RECONCILER,
            essential=None if is_unreadable and subresource else essential,
        )
        if is_unreadable:
            reply["status"] = {**status_of(request.raw), **body.get("status", {})}
        stored_request = decode_bind_request(reduced_request(reply), request)
        self._on_write(stored_request)
        return stored_request


def _pod_record(request: BindRequest) -> dict[str, str]:
    """Return the annotation with the UID of the request's pod, if only its owner reference tells it."""
    is_named = request.spec is not None and request.spec.pod_uid
    return {names.POD_UID: request.pod_uid} if request.pod_uid and not is_named else {}


def status_patch(stored_status: Object, status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch from the stored status to another one; None if they are equal."""
    patch: dict[str, Any] = {key: value for key, value in status.items() if stored_status.get(key) != value}
    patch |= dict.fromkeys(key for key in stored_status if key not in status)
    return patch or None


def _final_phase(patch: Mapping[str, Any]) -> Body | None:
    """Return the part of a patch of the status without which a scheduler would count the request for ever."""
    is_final = patch.get(_PHASE) in (Phase.SUCCEEDED, Phase.FAILED)
    return {"status": {_PHASE: patch[_PHASE]}} if is_final else None
