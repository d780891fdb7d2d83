"""A Handle for a plugin that a test calls instead of the reconciler.

Its workers do nothing: they need the running reconciler.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey
from bowline.framework.binding.handle import Handle, Reconcile
from bowline.framework.binding.metrics import PluginMetrics
from bowline.kube.client import KubeClient
from bowline.runtime.clock import Clock, SystemClock


def handle_for(
    plugin: str,
    client: KubeClient,
    registry: CollectorRegistry | None = None,
    clock: Clock | None = None,
) -> Handle:
    """Return the argument of ``BindingPlugin.setup``; the plugin's metrics are in ``registry``."""
    metrics = PluginMetrics(plugin, registry or CollectorRegistry())
    return Handle(client, clock or SystemClock(), _idle, metrics)


def _idle(_: str, __: Reconcile) -> Callable[[ObjectKey], None]:
    return lambda _: None
