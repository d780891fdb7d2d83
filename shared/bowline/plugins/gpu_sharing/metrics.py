"""Metrics of shared devices, in addition to the framework's per-plugin metrics."""

from bowline.framework.binding.metrics import PluginMetrics
from bowline.kube.store import Store
from bowline.plugins.gpu_sharing.idle_groups import has_reported


class SharingMetrics:
    """The plugin's own series."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self._reservations = metrics.gauge(
            "reservations",
            "Reservation pods, by whether the agent reported the device.",
            state=("held", "waiting"),
        )
        failures = metrics.counter(
            "reservations_failed_total",
            "Reservation pods released before they reported a device: the agent timed out, or the pod ended.",
            cause=("silent", "ended"),
        )
        self.silent_reservations, self.ended_reservations = failures.labels("silent"), failures.labels("ended")
        self.unreserved_groups = metrics.gauge(
            "groups_unreserved", "Groups that pods use and nothing reserves, by the last resync of this process."
        )

    def follow(self, reservations: Store) -> None:
        """Export the numbers of reservation pods in the watch cache; computed at each scrape."""
        self._reservations.labels("held").set_function(lambda: sum(map(has_reported, reservations.values())))
        self._reservations.labels("waiting").set_function(
            lambda: sum(not has_reported(reservation) for reservation in reservations.values())
        )
