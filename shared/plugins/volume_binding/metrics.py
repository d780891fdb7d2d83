"""Metrics of volumes, in addition to the framework's per-plugin metrics."""

from shared.framework.binding.metrics import PluginMetrics

# An existing volume that is reserved for the PVC; one that a provisioner creates.
STATIC, DYNAMIC = "static", "dynamic"


class VolumeMetrics:
    """The plugin's own series."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self.bound = metrics.histogram(
            "claim_bound_seconds",
            "From the write that asks for a claim's volume until the claim is seen bound.",
            how=(STATIC, DYNAMIC),
        )
        self.handed_back = metrics.counter(
            "decisions_handed_back_total", "Claims for which a provisioner could not make a volume on the node."
        )
