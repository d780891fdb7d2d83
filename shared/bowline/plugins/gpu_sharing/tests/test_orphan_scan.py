"""Which reservation pods without a group label a resync removes. All else needs a real API server."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.metrics import PluginMetrics
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.gpu_sharing.idle_groups import IdleGroups
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.orphan_scan import OrphanScan
from bowline.plugins.gpu_sharing.reservation import Reservation
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient
from bowline.plugins.gpu_sharing.reservation_pod import ReservationSpec
from bowline.plugins.gpu_sharing.tests.pods import reservation
from bowline.testing.handles import handle_for


class OneUser:
    """A client that lists one pod, of which only the metadata is read: it uses group g1."""

    async def list_reduced(self, _: Any, reduce: Callable[[dict[str, Any]], Any]) -> list[Any]:
        labels = {names.LABEL_GPU_SHARING: "true", names.LABEL_GPU_GROUP: "g1"}
        return [reduce({"metadata": {"name": "half", "namespace": "ns", "uid": "u", "labels": labels}})]


@dataclass(frozen=True, slots=True)
class Site(ReservationClient):
    """Has reservation pods without a group label, and records which are removed."""

    removals: list[str] = field(default_factory=list)

    async def all_reservations(self) -> list[Reservation]:
        reservations = {
            "in use": reservation(),
            "unused": reservation(group="g2"),
            "not decoded": replace(reservation(), node=""),
        }
        return [replace(entry, group="", status_reason=name) for name, entry in reservations.items()]

    async def remove(self, reservation: Reservation) -> bool:
        self.removals.append(reservation.status_reason)
        return True


async def test_an_unlabelled_reservation_is_removed_only_if_it_is_known_to_be_unused() -> None:
    kube: Any = OneUser()
    registry = CollectorRegistry()
    metrics = SharingMetrics(PluginMetrics("gpu_sharing", registry))
    handle = handle_for("gpu_sharing", kube, registry=registry)
    site = Site(kube, ReservationSpec("res", "image"), "")
    controller = GroupController(handle, site, timedelta(seconds=40), metrics, IdleGroups())
    await OrphanScan(handle, site, controller, metrics).run(ObjectKey("", "sweep"))
    assert site.removals == ["unused"]
