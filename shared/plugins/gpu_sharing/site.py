"""Reservation pods and the pods that use their devices, at the API server itself.

Every question here is a live read and every delete names the object that was read, by UID and resourceVersion: what a
cache says of a group may be a moment old, and a moment is enough to hand out a device that is being given up.
Decides nothing; that is ``reservation``'s.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from shared.api import names
from shared.api.meta import Object, ObjectKey, ObjectRef, ObjectUID, key_of, uid_of, version_of
from shared.kube.client import KubeClient
from shared.kube.errors import AlreadyExists, BadRequest, Conflict, Invalid, NotFound
from shared.kube.resources import BINDREQUESTS, PODS
from shared.plugins.gpu_sharing.pod import ReservationSpec, reservation_object
from shared.plugins.gpu_sharing.reservation import (
    Blocked,
    Claim,
    Reservation,
    User,
    asking_node,
    view_reservation,
    view_user,
)

APP = f"app={names.RESERVATION_APP}"


@dataclass(frozen=True, slots=True)
class Site:
    """The reservation namespace and what surrounds it. Methods raise what the client raises."""

    client: KubeClient
    spec: ReservationSpec
    scale_adjust_namespace: str

    async def reservations(self, group: str = "") -> list[Reservation]:
        """Return the reservation pods of a group, or all of them."""
        selector = f"{APP},{names.LABEL_GPU_GROUP}{f'={group}' if group else ''}"
        found = await self.client.list_all(PODS, self.spec.namespace, label_selector=selector)
        return [view_reservation(pod) for pod in found]

    async def users(self, group: str) -> list[User]:
        """Return every pod that is labelled with the group, in either form."""
        users: dict[ObjectUID, User] = {}
        for selector in (f"{names.LABEL_GPU_GROUP}={group}", f"{names.LABEL_GPU_GROUP}/{group}"):
            for pod in await self.client.list_all(PODS, label_selector=selector):
                user = view_user(pod)
                if user.key.namespace != self.spec.namespace:
                    users[user.uid] = user
        return list(users.values())

    async def asking_nodes(self, group: str, nodes: Collection[str], withdrawn: Collection[ObjectUID]) -> set[str]:
        """Return the nodes among these on which an unfinished request wants the group."""
        asking: set[str] = set()
        for node in nodes:
            for request in await self._unfinished(node):
                found = asking_node(request, group, withdrawn)
                if found == node:
                    asking.add(node)
        return asking

    async def _unfinished(self, node: str) -> list[dict[str, Any]]:
        try:
            selector = f"status.phase!=Succeeded,spec.selectedNode={node}"
            return await self.client.list_all(BINDREQUESTS, field_selector=selector)
        except BadRequest:
            # Another project's CRD has no selectable fields.
            return await self.client.list_all(BINDREQUESTS)

    async def scaling_up(self) -> Blocked | None:
        """Return why a device that is free now is wanted by somebody else; None if it is not."""
        namespace = self.scale_adjust_namespace
        for pod in await self.client.list_all(PODS, namespace) if namespace else ():
            conditions = (pod.get("status") or {}).get("conditions") or ()
            if not any(c.get("type") == "PodScheduled" and c.get("status") == "True" for c in conditions):
                why = f"the cluster is scaling up, pod {key_of(pod)} is not scheduled yet"
                return Blocked(why, ObjectRef("v1", "Pod", key_of(pod), uid_of(pod), version_of(pod)))
        return None

    async def create(self, claim: Claim) -> Reservation | str:
        """Create the reservation pod, or return the one that is there already; a sentence if it cannot be made.

        Raises AlreadyExists if one was there and has gone since: whoever asked is to come again.
        """
        body = reservation_object(claim, self.spec)
        name = body["metadata"]["name"]
        try:
            return view_reservation(await self.client.create(PODS, self.spec.namespace, body))
        except AlreadyExists:
            found = await self.pod(ObjectKey(self.spec.namespace, name))
            if found is None:
                raise
            present = view_reservation(found)
            if (present.node, present.group) == (claim.node, claim.group):
                return present
            return f"pod {present.key} is in the way: it is no reservation of this group; delete it"
        except NotFound:
            return f"namespace {self.spec.namespace} does not exist; create it or set gpuSharing.reservationNamespace"

    async def remove(self, reservation: Reservation) -> bool:
        """Delete the pod that was read, at once. False if it has changed since or another has its name."""
        try:
            await self.client.delete(
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
        """Return a pod; None if there is none."""
        try:
            return await self.client.get(PODS, key.namespace, key.name)
        except NotFound:
            return None

    async def label(self, pod: Object, changes: dict[str, Any], *, at_version: bool = False) -> Object | None:
        """Change labels of exactly this pod, in this version if asked for; None if it is gone or another by now."""
        metadata = pod["metadata"]
        guard = {"uid": metadata["uid"]} | ({"resourceVersion": metadata["resourceVersion"]} if at_version else {})
        try:
            return await self.client.patch(
                PODS, metadata["namespace"], metadata["name"], {"metadata": {**guard, "labels": changes}}
            )
        except NotFound:
            return None
        except (Conflict, Invalid) as error:
            is_other = isinstance(error, Conflict) or any(cause.field == "metadata.uid" for cause in error.causes)
            if not is_other:
                raise
            return None
