"""Metrics of shared devices, in addition to the framework's per-plugin metrics."""

from shared.framework.binding.metrics import PluginMetrics
from shared.kube.store import Store
from shared.plugins.gpu_sharing.idle_groups import has_reported


class SharingMetrics:
    """The plugin's own series."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self._reservations = metrics.gauge(
            "reservations",
            "Reservation pods, by whether the agent reported the device.",
            state=("held", "waiting"),
        )
        devices = metrics.counter("devices_total", "Devices reserved and released.", change=("reserved", "freed"))
        self.reserved, self.freed = devices.labels("reserved"), devices.labels("freed")
        failed = metrics.counter(
            "reservations_failed_total",
            "Reservation pods released before they reported a device: the agent timed out, or the pod ended.",
            cause=("silent", "ended"),
        )
        self.silent, self.ended = failed.labels("silent"), failed.labels("ended")
        lost = metrics.counter(
            "devices_lost_total",
            "Devices in use without a reservation: detected, reserved again, or a search without success.",
            change=("lost", "recovered", "unrecovered"),
        )
        self.lost, self.recovered, self.unrecovered = (lost.labels(c) for c in ("lost", "recovered", "unrecovered"))
        self.refused = metrics.counter(
            "configmaps_refused_total", "ConfigMaps that were not written because another object owns them."
        )
        self.unreserved = metrics.gauge(
            "groups_unreserved", "Groups that pods use and nothing reserves, by the last resync of this process."
        )

    def follow(self, reservations: Store) -> None:
        """Export the numbers of reservation pods in the watch cache; computed at each scrape."""
        held = self._reservations.labels("held")
        held.set_function(lambda: sum(map(has_reported, reservations.values())))
        self._reservations.labels("waiting").set_function(
            lambda: sum(not has_reported(one) for one in reservations.values())
        )
