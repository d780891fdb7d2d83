"""Metrics of shared devices, in addition to the framework's per-plugin metrics."""

from bowline.framework.interface.metrics import PluginMetrics
from bowline.plugins.gpu_sharing.watched_groups import WatchedGroups, has_reported


class SharingMetrics:
    """The plugin's own series. What the watches show is computed at each scrape."""

    def __init__(self, metrics: PluginMetrics, watched: WatchedGroups) -> None:
        reservations = metrics.gauge(
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
        unreserved = metrics.gauge("groups_unreserved", "Groups that pods use and no reservation pod holds.")
        unreserved.set_function(lambda: watched.unreserved)
        reservations.labels("held").set_function(lambda: sum(map(has_reported, watched.reservations)))
        reservations.labels("waiting").set_function(
            lambda: sum(not has_reported(reservation) for reservation in watched.reservations)
        )
