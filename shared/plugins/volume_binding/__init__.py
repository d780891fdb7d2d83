"""Gives a pod's claims their volumes on the pod's node, before the pod is bound.

Claims that are bound are checked against the node. For claims whose class waits for the first consumer a free volume
that reaches the node is kept, or their provisioner is asked for one there; the volume controller of Kubernetes binds
the two and the request waits for it, holding no worker. It undoes nothing: controller and provisioner may be half-way
through acting on what is written here, and what a claim has got is good for the next decision, too.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shared.api.meta import ObjectKey
from shared.framework.binding.handle import EventSource
from shared.framework.plugin import RUN_PARALLEL, SKIP_PARALLEL, Plugin, Preflight
from shared.framework.status import Status
from shared.framework.waiting import BindTimeoutConfig
from shared.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, STORAGECLASSES
from shared.plugins.volume_binding.assumptions import Assumptions
from shared.plugins.volume_binding.look import Looks, Remembered, Subject
from shared.plugins.volume_binding.metrics import VolumeMetrics
from shared.plugins.volume_binding.storage import Storage, slim_class, slim_volume
from shared.plugins.volume_binding.volumes import mounts_claims

if TYPE_CHECKING:
    from shared.framework.binding.context import BindContext
    from shared.framework.binding.handle import Handle


class VolumeBinding(Plugin):
    """Chooses volumes, asks for volumes, waits for volumes."""

    name = "volume_binding"
    config_model = BindTimeoutConfig

    async def setup(self, handle: "Handle") -> None:
        self._storage = Storage(handle.client, handle.clock)
        self._assumptions = Assumptions()
        self._looks = Looks(
            handle.client,
            self._storage,
            self._assumptions,
            VolumeMetrics(handle.metrics),
            self.args.bind_timeout,
        )

    async def stop(self) -> None:
        """Let go of everything: from here on another process chooses."""
        self._assumptions.clear()
        self._storage.clear()

    def preflight(self, c: "BindContext") -> Preflight:
        """Most pods mount no claims. Devices are independent of volumes, so both may be waited for at once."""
        return RUN_PARALLEL if c.pod is not None and mounts_claims(c.pod) else SKIP_PARALLEL

    async def pre_bind(self, c: "BindContext") -> Status:
        """Say OK once every claim of the pod has a volume that reaches the node."""
        if c.pod is None or c.node is None:
            return Status.retry("pod or node is not in sight")
        remembered = c.state.setdefault("remembered", Remembered())
        return await self._looks.settle(Subject(c.request.key, c.pod, c.node, remembered))

    async def forget(self, key: ObjectKey) -> None:
        self._assumptions.forget(key)
        self._storage.forget(key)

    def event_sources(self) -> Iterable["EventSource"]:
        """Watch what is still to be had or to be done: memory follows that, not the number of volumes."""
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
