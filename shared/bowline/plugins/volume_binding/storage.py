"""Reads of storage objects: cached where the set stays small, live where staleness would be unsafe.

Cached are unbound PVCs (their versions only, to requeue waiting requests), free volumes, those that requests of this
process have reserved, and classes. Bound PVCs and volumes, the majority in any cluster, are read when a pod needs
them. An unbound PVC is always read live: a volume reserved for a PVC that has been deleted and created again would be
reclaimed with its data. That a PVC has become bound is taken from the watch event.
"""

import asyncio
import re
from collections.abc import Collection
from typing import Any

from bowline.api import names
from bowline.api.meta import Object, ObjectKey, identity_of, key_of
from bowline.api.pod_volumes import PodVolume, pod_volumes
from bowline.api.selectors import Node
from bowline.framework.interface.node_labels import NodeLabels
from bowline.kube.errors import NotFound, Unreadable
from bowline.kube.object_client import ObjectClient
from bowline.kube.reflector import Reflector
from bowline.kube.resources import (
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    STORAGECLASSES,
    Selection,
)
from bowline.plugins.volume_binding.assume_cache import AssumeCache
from bowline.plugins.volume_binding.bound_claims import BoundClaimCache
from bowline.plugins.volume_binding.matching import FreeVolumes, is_free
from bowline.plugins.volume_binding.volumes import (
    PersistentVolumeClaim,
    StorageClass,
    Volume,
    read_claim,
    read_class,
    read_volume,
)
from bowline.runtime.clock import Clock


def transform_class(raw: dict[str, Any]) -> Object:
    """Transform: keep what binding depends on."""
    return {"metadata": identity_of(raw), "class": read_class(raw)}


class Storage:
    """Reads. Every method raises the client's errors; a missing object is None."""

    def __init__(self, client: ObjectClient, clock: Clock) -> None:
        self._client = client
        self._volumes: Reflector | None = None
        self.free_volumes = FreeVolumes()
        self.bound_claims = BoundClaimCache(clock.monotonic)
        self.assume_cache = AssumeCache(self._discard)
        self._claims: Reflector | None = None
        self._classes: Reflector | None = None
        self._node_labels = NodeLabels(client)

    # --- called by watches ---

    def transform_claim(self, raw: dict[str, Any]) -> Object | None:
        """Transform: keep identity and version of an unbound PVC; record the state of an awaited one."""
        metadata = raw["metadata"]
        if key_of(raw) in self.bound_claims:
            self.bound_claims.record(read_claim(raw))
        if names.BIND_COMPLETED in (metadata.get("annotations") or {}):
            return None
        identity = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
        return {"metadata": identity, "class": read_claim(raw).spec.class_name}

    def transform_volume(self, raw: dict[str, Any]) -> Object | None:
        """Transform: keep free volumes, and those that are being bound for a request."""
        volume = read_volume(raw)
        is_kept = is_free(volume) or volume.name in self.assume_cache
        return {"metadata": identity_of(raw), "volume": volume} if is_kept else None

    def may_end_wait(self, request: ObjectKey, cached_volume: Object) -> bool:
        """Queueing hint of a volume: while it is being bound as the request has reserved it, only the PVC's event
        ends the wait.
        """
        volume: Volume = cached_volume["volume"]
        return volume.deleting or not self.assume_cache.holds(request, volume.claim_uid, volume.name)

    def attach_volumes(self, reflector: Reflector) -> None:
        """Use this reflector to determine whether all free volumes have been listed."""
        self._volumes = reflector

    def attach_claims(self, reflector: Reflector) -> None:
        """Read from this reflector's store which PVCs have no volume."""
        self._claims = reflector

    def attach_classes(self, reflector: Reflector) -> None:
        """Read classes from this reflector's store."""
        self._classes = reflector

    def clear(self) -> None:
        """Remove all requests: another process binds from here on."""
        self.assume_cache.clear()
        self.bound_claims.clear()

    def forget(self, request: ObjectKey) -> None:
        """Remove a request that no longer exists."""
        self.assume_cache.forget(request)
        self.bound_claims.forget(request)

    def _discard(self, name: str) -> None:
        """Remove a volume from the cache that was kept only for the requests that relied on it."""
        key = ObjectKey("", name)
        cached_volume = self._volumes.store.get(key) if self._volumes is not None else None
        if self._volumes is not None and cached_volume is not None and not is_free(cached_volume["volume"]):
            self._volumes.discard(key)

    # --- reads ---

    async def claims(self, volumes: Collection[PodVolume]) -> list[PersistentVolumeClaim | None]:
        """Return the PVCs from live reads, or from the event that has just reported them bound."""
        return list(await asyncio.gather(*(self._claim(volume.claim) for volume in volumes)))

    async def claims_of(
        self, namespace: str, pod: Object | None
    ) -> tuple[list[PersistentVolumeClaim], Unreadable | None]:
        """Return, live, the PVCs of a pod, or all of the namespace for a pod that does not exist any more; and the
        error of one that cannot be decoded.
        """
        if pod is None:
            return [*await self._client.list_reduced(Selection(PERSISTENTVOLUMECLAIMS, namespace), read_claim)], None
        claims, unreadable = [], None
        for volume in pod_volumes(pod):
            try:
                claim = await self._claim(volume.claim)
            except Unreadable as error:
                unreadable = error
            else:
                claims += [claim] if claim is not None else []
        return claims, unreadable

    def may_be_provisioned(self, key: ObjectKey) -> bool:
        """Return whether a PVC has no volume and may get one from a provisioner, once its node is chosen.

        One that is not in the cache is bound, or new: then its first attempt may have asked the provisioner.
        """
        cached_claim = self._claims.store.get(key) if self._claims is not None else None
        if cached_claim is None:
            return self.bound_claims.awaits(key)
        name = cached_claim["class"]
        cached_class = self._classes.store.get(ObjectKey("", name)) if self._classes is not None and name else None
        if cached_class is None:
            return bool(name)
        storage_class: StorageClass = cached_class["class"]
        return storage_class.wait_for_first_consumer and storage_class.provisions

    async def volumes(self, volumes: Collection[str]) -> list[Volume | None]:
        """Return the volumes from live reads."""
        return list(await asyncio.gather(*(self._volume(name) for name in volumes)))

    def cached_volumes(self, claims: Collection[PersistentVolumeClaim], node: Node) -> list[Volume] | None:
        """Return the cached free volumes that the PVCs can use on the node; None before the first complete list."""
        if self._volumes is None or not self._volumes.synced.is_set():
            return None
        return list(self.free_volumes.candidates(claims, node))

    async def volumes_for(self, claims: Collection[ObjectKey]) -> list[Volume]:
        """Return, live, the free volumes and those reserved for the PVCs, whose bind may be in progress.

        It lists all volumes, so it is used only where the result decides.
        """
        volumes = await self._client.list_reduced(Selection(PERSISTENTVOLUMES), read_volume)
        return [volume for volume in volumes if is_free(volume) or volume.claim in claims]

    async def class_of(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        """Return the PVC's class, cached or else live."""
        name = claim.spec.class_name
        if not name:
            return None
        cached_class = self._classes.store.get(ObjectKey("", name)) if self._classes is not None else None
        if cached_class is not None:
            storage_class: StorageClass = cached_class["class"]
            return storage_class
        try:
            return read_class(await self._client.get(STORAGECLASSES, "", name))
        except NotFound:
            return None

    async def node(self, cached_node: Object) -> Node | None:
        """Return the node with all its labels; ``cached_node`` is the reduced object in the reconciler's cache."""
        return await self._node_labels.get(cached_node)

    async def has_node(self, name: str) -> bool:
        """Return whether the node exists; a PVC's annotation may have any text."""
        if not re.fullmatch(names.DNS_SUBDOMAIN, name):
            return False
        try:
            await self._client.get(NODES.as_metadata(), "", name)
        except NotFound:
            return False
        return True

    async def _claim(self, key: ObjectKey) -> PersistentVolumeClaim | None:
        bound_claim = self.bound_claims.pop(key)
        if bound_claim is not None:
            return bound_claim
        try:
            return read_claim(await self._client.get(PERSISTENTVOLUMECLAIMS, key.namespace, key.name))
        except NotFound:
            return None

    async def _volume(self, name: str) -> Volume | None:
        try:
            return read_volume(await self._client.get(PERSISTENTVOLUMES, "", name))
        except NotFound:
            return None
