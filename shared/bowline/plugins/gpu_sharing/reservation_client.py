"""Live reads and writes of reservation pods and of the pods that use their devices.

All reads bypass the cache, and every delete has UID and resourceVersion of the object read as preconditions: with a
stale cache, even by milliseconds, a device could be assigned while it is being released. Decides nothing;
``reservation`` does.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.meta import (
    Object,
    ObjectKey,
    ObjectRef,
    ObjectUID,
    ResourceVersion,
    format_micro_time,
    key_of,
    uid_of,
    version_of,
)
from bowline.framework.config import GpuSharingSettings
from bowline.framework.interface.status import Status
from bowline.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    InfrastructureError,
    Invalid,
    NotFound,
    Unreadable,
)
from bowline.kube.events import EventNote, event_body, event_name, name_suffix
from bowline.kube.object_client import ObjectClient
from bowline.kube.reflector import rejects_fields
from bowline.kube.resources import (
    BINDREQUESTS,
    CONFIGMAPS,
    EVENTS,
    NODES,
    PODS,
    UNFINISHED_BINDREQUESTS,
    Selection,
)
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.configmaps import common_devices, owning_pods, shown_devices, shown_mode
from bowline.plugins.gpu_sharing.reservation import (
    ELSEWHERE,
    DeviceRequest,
    Reservation,
    User,
    facts_of,
    is_unscheduled,
    requested_node,
    view_reservation,
    view_user,
)
from bowline.plugins.gpu_sharing.reservation_pod import essential_parts, reservation_object
from bowline.plugins.gpu_sharing.rules import Share, share_of

log = logging.getLogger(__name__)

NO_CHANGE: Mapping[str, None] = {}
# A lost device is reserved again after its users were told: a webhook that hangs for one of them must not delay that.
EVENT_TIMEOUT_S = 2.0
# Longer than a scheduler takes to place a scaling pod on an existing node. With an autoscaler at its limit the pod is
# never placed; the request then ends, and the scheduler may choose a device that is shared already.
SCALING = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ReservationClient:
    """The reservation namespace and the objects that refer to it. Methods raise the client's errors."""

    kube: ObjectClient
    sharing: GpuSharingSettings
    args: GpuSharingConfig

    @property
    def namespace(self) -> str:
        """The namespace of reservation pods."""
        return self.sharing.reservation_namespace

    async def reservations(self, group: str) -> list[Reservation]:
        """Return the reservation pods of a group."""
        selector = f"{names.LABEL_GPU_GROUP}={group}"
        pods = await self.kube.list_all(PODS, self.namespace, label_selector=selector)
        return [view_reservation(pod) for pod in pods]

    async def users(self, group: str, node: str | None = None, mebibytes: int = 0) -> list[User]:
        """Return every pod that is labelled with the group, in either form; only on ``node`` if given, whose devices
        have ``mebibytes`` of memory each. An empty node stands for the pods that are not bound.

        The API server indexes pods by node: the cost depends on the node's pods, not on the cluster's.
        """
        users: dict[ObjectUID, User] = {}
        on_node = f"spec.nodeName={node}" if node is not None else ""
        for selector in (f"{names.LABEL_GPU_GROUP}={group}", f"{names.LABEL_GPU_GROUP}/{group}"):
            pods = Selection(PODS, "", selector, on_node)
            for user in await self.kube.list_reduced(pods, lambda pod: view_user(pod, node or "", mebibytes)):
                if user.key.namespace != self.namespace:
                    users[user.uid] = user
        return list(users.values())

    async def lost_device(self, group: str, users: Sequence[User]) -> DeviceRequest:
        """Return the request of running pods for the device that, by their ConfigMaps, they use."""
        device_sets, tolerations, mode, node = [], (), "", users[0].node
        for user in users:
            try:
                pod = await self.pod(user.key)
            except Unreadable:
                continue
            share = share_of(pod) if pod is not None and uid_of(pod) == user.uid else None
            if pod is None or share is None:
                continue
            tolerations = tuple(pod["spec"].get("tolerations") or ())
            devices, shown = await self._shown(group, share, user)
            device_sets.append(devices)
            mode = mode or shown
        try:
            live_node = await self.kube.get(NODES, "", node)
        except (NotFound, Unreadable):
            live_node = None
        return DeviceRequest(
            request=users[0].key,
            pod=users[0].key,
            node=node,
            group=group,
            tolerations=tolerations,
            compute_mode=mode,
            node_facts=facts_of(live_node),
            expected_devices=common_devices(device_sets),
        )

    async def _shown(self, group: str, share: Share, user: User) -> tuple[frozenset[str], str]:
        """Return the possible devices and the mode of the group, according to the pod's ConfigMaps."""
        annotations: dict[str, str] = {}
        data: dict[str, str] = {}
        for name in share.configmaps:
            try:
                configmap = await self.kube.get(CONFIGMAPS, user.key.namespace, name)
            except (NotFound, Unreadable):
                continue
            if user.uid in owning_pods(configmap):
                annotations |= configmap["metadata"].get("annotations") or {}
                data |= configmap.get("data") or {}
        return shown_devices(group, annotations, data), shown_mode(group, annotations)

    async def report(self, users: Iterable[User], reason: str, note: str, *, is_warning: bool = True) -> None:
        """Write an event for each of the pods, at the same time. One that cannot be written soon is only logged."""

        async def write(user: User) -> None:
            about = ObjectRef("v1", "Pod", user.key, user.uid, ResourceVersion(""))
            event = EventNote(about, reason, note, "Warning" if is_warning else "Normal", action="Reserving")
            name = event_name(user.key.name, name_suffix(self.kube.random))
            body = event_body(event, name, "gpu_sharing", self.kube.clock.now())
            try:
                async with asyncio.timeout(EVENT_TIMEOUT_S):
                    await self.kube.create(EVENTS, event.namespace, body)
            except (ApiError, InfrastructureError, TimeoutError) as error:
                why = str(error) or f"the create has not ended within {EVENT_TIMEOUT_S:g} s"
                log.warning("an event cannot be written", extra={"pod": str(user.key), "error": why})

        await asyncio.gather(*map(write, users))

    async def requested_nodes(self, group: str, nodes: Collection[str], withdrawn: Collection[ObjectUID]) -> set[str]:
        """Return those of the nodes on which an unfinished request needs the group; an empty node stands for all."""

        def node_of(request: Object) -> str | None:
            return requested_node(request, group, withdrawn)

        requested: set[str] = set()
        for node in nodes:
            fields = UNFINISHED_BINDREQUESTS.field_selector + (f",spec.selectedNode={node}" if node else "")
            try:
                listed = await self.kube.list_reduced(Selection(BINDREQUESTS, field_selector=fields), node_of)
            except BadRequest as error:
                if not rejects_fields(error):
                    raise
                listed = await self.kube.list_reduced(Selection(BINDREQUESTS), node_of)
            requested |= {name for name in listed if name and node in ("", name)}
        return requested

    async def scaling_up(self) -> Status | None:
        """Return the wait for an unscheduled scaling pod that may need a free device; None if there is none.

        If the pods cannot be listed, as for KAI-Scheduler's binder, None: a missing permission must not block all
        shares.
        """
        namespace = self.args.scale_adjust_namespace
        try:
            pods = await self.kube.list_all(PODS, namespace) if namespace else []
        except ApiError as error:
            log.warning("scaling pods cannot be listed", extra={"namespace": namespace, "error": str(error)})
            return None
        for pod in pods:
            if is_unscheduled(pod):
                why = f"no device can be reserved: the cluster is scaling up, pod {key_of(pod)} is not scheduled yet"
                ref = ObjectRef("v1", "Pod", key_of(pod), uid_of(pod), version_of(pod))
                return Status.wait(why, ref, timeout=SCALING, suggestion=ELSEWHERE)
        return None

    async def create(self, claim: DeviceRequest, name: str) -> Reservation | str:
        """Create the reservation pod, or return the existing one; a message if it cannot be created.

        An existing one that has lost its labels gets them again. Raises AlreadyExists if one existed and was deleted
        meanwhile: the caller must retry; NotStoredError if it is stored otherwise.
        """
        body = reservation_object(claim, self.sharing, self.args, name=name)
        try:
            essential = essential_parts(body)
            return view_reservation(await self.kube.create(PODS, self.namespace, body, essential=essential))
        except AlreadyExists:
            existing_pod = await self.pod(ObjectKey(self.namespace, name))
            if existing_pod is None:
                raise
            existing = view_reservation(existing_pod)
            if existing.deleting:
                return f"reservation pod {existing.key} cannot be created again: {existing.deletion}"
            if (existing.node, existing.group) == (claim.node, claim.group):
                return existing
            if existing.node == claim.node:
                labelled_pod = await self.label(existing_pod, body["metadata"]["labels"])
                if labelled_pod is None:
                    raise
                return view_reservation(labelled_pod)
            return f"pod {existing.key} has the reservation's name, but is on another node; delete it"
        except NotFound:
            return f"namespace {self.namespace} does not exist; create it or set gpuSharing.reservationNamespace"

    async def remove(self, reservation: Reservation) -> bool:
        """Delete the pod as read, without grace period. False if it has changed or another pod has its name."""
        try:
            await self.kube.delete(
                PODS,
                reservation.key.namespace,
                reservation.key.name,
                uid=reservation.uid,
                resource_version=reservation.version,
                grace_period_s=0,
            )
        except NotFound:
            return True
        except Conflict:
            return False
        return True

    async def pod(self, key: ObjectKey) -> dict[str, Any] | None:
        """Return a pod; None if it does not exist."""
        try:
            return await self.kube.get(PODS, key.namespace, key.name)
        except NotFound:
            return None

    async def touch(self, reservation: Reservation) -> Reservation | None:
        """Change the reservation pod, so that a delete of an earlier version is refused. None if it was deleted.

        It is recorded for which device it stands from now on: if its agent reports another one, such as after a
        restart of the kubelet, the device of its users is lost.
        """
        moment = format_micro_time(self.kube.clock.now())
        joined = {names.ANNOTATION_LAST_JOINED: moment, names.ANNOTATION_EXPECTED_DEVICES: reservation.device}
        metadata = {"uid": reservation.uid, "annotations": joined}
        changed_pod = await self.patch_metadata(reservation.key, metadata)
        return view_reservation(changed_pod) if changed_pod is not None else None

    async def label(
        self, pod: Object, changes: Mapping[str, str | None], annotations: Mapping[str, str | None] = NO_CHANGE
    ) -> Object | None:
        """Patch labels and annotations of the pod in the version that was read. None if it does not match."""
        guard = {"uid": uid_of(pod), "resourceVersion": version_of(pod)}
        return await self.patch_metadata(key_of(pod), {**guard, "labels": changes, "annotations": annotations})

    async def patch_metadata(self, key: ObjectKey, metadata: Mapping[str, Any]) -> Object | None:
        """Patch a pod; None if it does not exist or does not match the UID or version in ``metadata``.

        Raises NotStoredError.
        """
        try:
            body = {"metadata": metadata}
            return await self.kube.patch(PODS, key.namespace, key.name, body, essential=body)
        except NotFound:
            return None
        except (Conflict, Invalid) as error:
            if isinstance(error, Invalid) and all(cause.field != "metadata.uid" for cause in error.causes):
                raise
            return None
