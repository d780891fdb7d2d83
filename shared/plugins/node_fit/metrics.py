"""What an operator wants to know of nodes that had no room, beside what the framework counts of every plugin."""

from collections.abc import Iterable

from shared.framework.binding.metrics import PluginMetrics
from shared.plugins.node_fit.rules import KINDS, kind_of


class FitMetrics:
    """The plugin's own series."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self._misfits = metrics.counter(
            "misfits_total", "Looks that found too little of a resource left on the node.", resource=KINDS
        )

    def misfit(self, resources: Iterable[str]) -> None:
        """A look has found too little left of these."""
        for kind in {kind_of(resource) for resource in resources}:
            self._misfits.labels(kind).inc()
