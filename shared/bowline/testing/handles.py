"""A Handle for a plugin that a test calls instead of the reconciler.

Its workers and background tasks do nothing: they need the running reconciler.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey
from bowline.framework.binding.handle import Handle, Reconcile
from bowline.framework.binding.metrics import PluginMetrics
from bowline.framework.config import Settings
from bowline.framework.gates import FeatureGates
from bowline.kube.client import KubeClient
from bowline.kube.events import EventNote
from bowline.runtime.clock import Clock, SystemClock

__all__ = ["handle_for"]


def handle_for(
    plugin: str,
    client: KubeClient,
    settings: Settings | None = None,
    registry: CollectorRegistry | None = None,
    clock: Clock | None = None,
    record: Callable[[EventNote], None] | None = None,
) -> Handle:
    """Return the argument of ``BindingPlugin.setup``; the plugin's metrics are in ``registry``, its events go to
    ``record``.
    """
    metrics = PluginMetrics(plugin, registry or CollectorRegistry())
    settings = settings or Settings()
    return Handle(
        settings,
        client,
        clock or SystemClock(),
        _idle,
        lambda _, __: None,
        record or (lambda _: None),
        metrics,
        FeatureGates(settings.feature_gates),
    )


def _idle(_: str, __: Reconcile) -> Callable[[ObjectKey], None]:
    return lambda _: None
