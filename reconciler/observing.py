"""What the Runner tells of plugins' calls, as metrics and log lines."""

import logging

from reconciler.metrics import ReconcilerMetrics
from shared.framework.binding.context import BindContext

log = logging.getLogger(__name__)


class PluginObserver:
    """Counts every call; logs an exception once, with its traceback."""

    def __init__(self, metrics: ReconcilerMetrics) -> None:
        self._metrics = metrics

    def call_ended(self, plugin: str, point: str, code: str, seconds: float) -> None:
        """One call is over."""
        self._metrics.plugin_seconds.labels(plugin=plugin, point=point, code=code).observe(seconds)

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        """A plugin raised: its own fault."""
        self._metrics.plugin_errors.labels(plugin=plugin, point=point).inc()
        logger = context.log if context is not None else log
        logger.error("plugin raised", extra={"plugin": plugin, "point": point}, exc_info=error)
