"""Resync: finds unused or unreserved devices at the start of leadership and periodically.

Without a leader the end of sharing pods is not observed; an interrupted watch may miss one too. A resync compares two
lists and enqueues the groups that seem to have no users, or no reservation; the group's reconcile then decides.

The first resync reads the metadata of all pods, because no selector finds pods of several devices that another binder
has labelled: they get the label that the watch selects, each by itself, so that a patch that hangs delays no resync.
"""

import logging
from collections.abc import Collection, Sequence
from datetime import timedelta

from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import Object, ObjectKey, key_of
from bowline.framework.binding.handle import Handle
from bowline.kube.errors import ApiError, NotStoredError
from bowline.kube.resources import BOUND_AND_UNENDED, PODS, Selection
from bowline.plugins.gpu_sharing.group_controller import GroupController
from bowline.plugins.gpu_sharing.idle_groups import groups_of, transform_user
from bowline.plugins.gpu_sharing.labels import SHARING, label_changes, needs_relabeling
from bowline.plugins.gpu_sharing.metrics import SharingMetrics
from bowline.plugins.gpu_sharing.reservation import Reservation, is_named_for
from bowline.plugins.gpu_sharing.reservation_client import ReservationClient

log = logging.getLogger(__name__)

PERIOD = timedelta(minutes=10)


class OrphanScan:
    """One resync per call of ``run``; the first one of a leadership also enqueues pods of other binders to label."""

    def __init__(
        self, handle: Handle, client: ReservationClient, controller: GroupController, metrics: SharingMetrics
    ) -> None:
        self._client = client
        self._enqueue_adoption = handle.worker("labels", self._adopt)
        self._controller = controller
        self._metrics = metrics
        self._adopts = True

    def begin(self) -> None:
        """Start of leadership: other binders may have labelled pods before."""
        self._adopts = True

    async def run(self, _: ObjectKey) -> timedelta | None:
        """Resync once; returns the delay until the next."""
        selector = "" if self._adopts else SHARING
        reservations = await self._client.all_reservations()
        groups_in_use: set[str] = set()
        for pod in await self._sharing(selector):
            groups_in_use |= gpu_groups(pod["metadata"]["labels"])
            if needs_relabeling(pod["metadata"]["labels"]):
                self._enqueue_adoption(key_of(pod))
        self._adopts = False
        await self._remove_unlabelled(reservations, groups_in_use)
        self._controller.enqueue({reservation.group for reservation in reservations} - groups_in_use - {""})
        unheld_groups = groups_in_use - _held_groups(reservations)
        if unheld_groups:
            # Shares may have been bound since: listing all pods of a cluster takes a while.
            unheld_groups -= _held_groups(await self._client.all_reservations())
        self._metrics.unreserved_groups.set(len(unheld_groups))
        if unheld_groups:
            self._controller.enqueue(unheld_groups)
            log.warning("devices in use that nothing reserves", extra={"groups": sorted(unheld_groups)[:20]})
        return PERIOD

    async def _sharing(self, selector: str) -> list[Object]:
        """Return identity and group labels of the pods with groups that use a device: on a node, and not ended."""
        selection = Selection(PODS.as_metadata(), label_selector=selector, field_selector=BOUND_AND_UNENDED)
        pods = await self._client.kube.list_reduced(
            selection, lambda pod: transform_user(pod) if groups_of(pod) else None
        )
        return [pod for pod in pods if pod is not None and key_of(pod).namespace != self._client.spec.namespace]

    async def _remove_unlabelled(self, reservations: Sequence[Reservation], groups_in_use: Collection[str]) -> None:
        """Remove reservations without a group label that belong, by their names, to no group in use.

        The one of a group in use gets its label again when the group's device is recovered. One that is not decoded
        stays: its node is not known, so neither is its group.
        """
        for reservation in reservations:
            is_in_use = any(is_named_for(reservation.key.name, reservation.node, group) for group in groups_in_use)
            if reservation.group or reservation.deleting or is_in_use or not reservation.node:
                continue
            try:
                if await self._client.remove(reservation):
                    log.info("unlabelled reservation released", extra={"reservation": str(reservation.key)})
            except ApiError as error:
                why = {"reservation": str(reservation.key), "error": str(error)}
                log.warning("an unlabelled reservation cannot be released", extra=why)

    async def _adopt(self, key: ObjectKey) -> None:
        """Add the labels for watch and scheduler to a pod of another binder. Raises InfrastructureError."""
        try:
            pod = await self._client.pod(key)
            labels = (pod["metadata"].get("labels") or {}) if pod is not None else {}
            if pod is not None and groups_of(pod) and needs_relabeling(labels):
                await self._client.label(pod, label_changes(labels, sorted(gpu_groups(labels))))
        except (ApiError, NotStoredError) as error:
            # For example denied by a policy: the next leader's first resync retries.
            log.warning("a sharing pod cannot be labelled", extra={"pod": str(key), "error": str(error)})


def _held_groups(reservations: Sequence[Reservation]) -> set[str]:
    """Return the groups whose device is, or is about to be, held; an ended reservation holds nothing."""
    return {reservation.group for reservation in reservations if reservation.lives and not reservation.is_misplaced}
