"""Provides the volumes of a pod's PVCs on the pod's node, before the pod is bound.

Bound PVCs are checked against the node. For PVCs whose class is WaitForFirstConsumer, a free volume that is usable on
the node is reserved, or the provisioner is requested to create one there. The PV controller binds PVC and volume; the
request waits for that without holding a worker. There is no rollback: controller and provisioner may already act on
these writes, and the volume of a PVC is also useful to the next decision.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shared.api.meta import ObjectKey
from shared.framework.binding.handle import EventSource
from shared.framework.plugin import RUN_PARALLEL, SKIP_PARALLEL, Plugin, Preflight
from shared.framework.status import Status
from shared.framework.waiting import BindTimeoutConfig
from shared.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from shared.plugins.volume_binding.assumptions import AssumeCache
from shared.plugins.volume_binding.look import PodVolumes, Subject, VolumeBinder
from shared.plugins.volume_binding.metrics import VolumeMetrics
from shared.plugins.volume_binding.storage import Storage, slim_class, slim_volume
from shared.plugins.volume_binding.volumes import mounts_claims

if TYPE_CHECKING:
    from shared.framework.binding.context import BindContext
    from shared.framework.binding.handle import Handle


class VolumeBinding(Plugin):
    """Reserves volumes, requests provisioning and waits for bound PVCs."""

    name = "volume_binding"
    config_model = BindTimeoutConfig

    async def setup(self, handle: "Handle") -> None:
        self._storage = Storage(handle.client, handle.clock)
        self._assumptions = AssumeCache()
        self._looks = VolumeBinder(
            handle.client,
            self._storage,
            self._assumptions,
            VolumeMetrics(handle.metrics),
            self.args.bind_timeout,
        )

    async def stop(self) -> None:
        """Drop all state: another process binds from here on."""
        self._assumptions.clear()
        self._storage.clear()

    def preflight(self, ctx: "BindContext") -> Preflight:
        """Most pods mount no PVC. Devices are independent of volumes, so both waits may run in parallel."""
        return RUN_PARALLEL if ctx.pod is not None and mounts_claims(ctx.pod) else SKIP_PARALLEL

    async def pre_bind(self, ctx: "BindContext") -> Status:
        """Return OK once every PVC of the pod has a volume that is usable on the node."""
        if ctx.pod is None or ctx.node is None:
            return Status.retry("pod or node is not in sight")
        remembered = ctx.state.setdefault("remembered", PodVolumes())
        return await self._looks.settle(Subject(ctx.request.key, ctx.pod, ctx.node, remembered))

    async def forget(self, key: ObjectKey) -> None:
        self._assumptions.forget(key)
        self._storage.forget(key)

    def event_sources(self) -> Iterable["EventSource"]:
        """Watch unbound PVCs, free volumes and classes: memory does not grow with the number of bound volumes."""
        storage = self._storage
        return (
            EventSource(PERSISTENTVOLUMECLAIMS, slim=storage.slim_claim),
            EventSource(
                PERSISTENTVOLUMES,
                slim=slim_volume,
                attach=storage.mirror_volumes,
                on_change=storage.volume_changed,
            ),
            EventSource(STORAGECLASSES, slim=slim_class, attach=storage.mirror_classes),
        )
