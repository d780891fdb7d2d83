"""Metrics of nodes that had too little left, in addition to the framework's per-plugin metrics."""

from collections.abc import Iterable

from shared.framework.binding.metrics import PluginMetrics
from shared.plugins.node_fit.rules import KINDS, kind_of


class FitMetrics:
    """The plugin's own series."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self._misfits = metrics.counter(
            "misfits_total", "Checks that found too little of a resource left on the node.", resource=KINDS
        )

    def misfit(self, resources: Iterable[str]) -> None:
        """Count a check that failed for lack of these resources, once per kind."""
        for kind in {kind_of(resource) for resource in resources}:
            self._misfits.labels(kind).inc()
