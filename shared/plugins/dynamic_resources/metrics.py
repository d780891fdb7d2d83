"""Metrics of claims, in addition to the framework's per-plugin metrics."""

from typing import Any

from shared.framework.binding.metrics import PluginMetrics

_WAITS_SINCE = "devices_wait_since"


class ClaimMetrics:
    """The plugin's own series."""

    def __init__(self, metrics: PluginMetrics) -> None:
        changes = metrics.counter(
            "reservations_total",
            "Pods reserved in claims before their bind, and removed because it was abandoned.",
            change=("made", "released"),
        )
        self._made, self._released = changes.labels("made"), changes.labels("released")
        self._wait = metrics.histogram(
            "device_wait_seconds", "From a pod's first check of devices that must get ready until they are."
        )

    def consumers(self, before: int, after: int) -> None:
        """Count a write that changed the number of a claim's consumers."""
        (self._made if after > before else self._released).inc(abs(after - before))

    def devices(self, state: dict[str, Any], *, pending: bool, now: float) -> None:
        """Start, or end and observe, the wait for a pod's devices. ``state``: its attempt's; ``now``: monotonic
        seconds.
        """
        if pending:
            state.setdefault(_WAITS_SINCE, now)
        elif _WAITS_SINCE in state:
            self._wait.observe(now - state.pop(_WAITS_SINCE))
