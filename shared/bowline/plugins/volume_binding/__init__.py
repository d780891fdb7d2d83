"""Provides the volumes of a pod's PVCs on the pod's node, before the pod is bound.

Bound PVCs are checked against the node. For PVCs whose class is WaitForFirstConsumer, a free volume that is usable on
the node is reserved, or the provisioner is requested to create one there. The PV controller binds PVC and volume; the
request waits for that without holding a worker. A rollback withdraws only what no provisioner has answered: the
volume of a PVC is also useful to the next decision. Only a request whose pod mounts a PVC that may be provisioned
needs the finalizer.
"""

from collections.abc import Iterable, Mapping

from bowline.api.pod_volumes import pod_volumes
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from bowline.plugin import (
    Access,
    AccessRule,
    BindContext,
    BindRequest,
    EventSource,
    Handle,
    Object,
    ObjectKey,
    Status,
)
from bowline.plugins.volume_binding.binder import BindState, VolumeBinder
from bowline.plugins.volume_binding.storage import Storage, transform_class


class VolumeBinding(BuiltinBindingPlugin[BindTimeoutConfig]):
    """Reserves volumes, requests provisioning and waits for bound PVCs."""

    name = "volume_binding"
    # Devices are independent of volumes.
    parallel = True
    access = Access(
        rules=(
            # patch: a volume's claimRef, a claim's selected node.
            AccessRule("persistentvolumes", ("get", "list", "watch", "patch")),
            AccessRule("persistentvolumeclaims", ("get", "list", "watch", "patch")),
            AccessRule("storageclasses", ("get", "list", "watch"), "storage.k8s.io"),
        )
    )

    async def setup(self, handle: Handle) -> None:
        self._storage = Storage(handle.client, handle.clock)
        self._binder = VolumeBinder(handle.client, self._storage, self.args.bind_timeout)

    async def run(self) -> None:
        """Drop all state: another process may have bound since."""
        self._storage.clear()

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Most pods mount no PVC."""
        return bool(pod_volumes(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Return OK once every PVC of the pod has a volume that is usable on the node."""
        if ctx.pod is None or ctx.node is None:
            return Status.retry("pod or node is not in the cache")
        state = ctx.state.setdefault("volumes", BindState())
        return await self._binder.bind_pod_volumes(ctx.request, ctx.pod, ctx.node, state)

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        """Return whether a volume may be requested from a provisioner."""
        volumes = pod_volumes(pod) if pod is not None else ()
        return any(self._storage.may_be_provisioned(volume.claim) for volume in volumes)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        """Withdraw what the request has asked of provisioners that have not answered."""
        return await self._binder.withdraw(ctx.request, ctx.pod)

    async def forget(self, key: ObjectKey) -> None:
        self._storage.forget(key)

    def sizes(self) -> Mapping[str, int]:
        storage = self._storage
        return {"assumedVolumes": len(storage.assume_cache), "boundClaims": len(storage.bound_claims)}

    def event_sources(self) -> Iterable[EventSource]:
        """Watch unbound PVCs, volumes until they are bound, and classes. Bound volumes leave the cache."""
        storage = self._storage
        return (
            EventSource(PERSISTENTVOLUMECLAIMS, transform=storage.transform_claim, attach=storage.attach_claims),
            EventSource(
                PERSISTENTVOLUMES,
                queueing_hint=storage.may_end_wait,
                transform=storage.transform_volume,
                attach=storage.attach_volumes,
                on_change=storage.free_volumes.on_change,
            ),
            EventSource(STORAGECLASSES, transform=transform_class, attach=storage.attach_classes),
        )
