"""The Handle and the context of a plugin that a test calls instead of the reconciler.

Workers do nothing: they need the running reconciler.
"""

from collections.abc import Callable
from typing import Any, cast

from prometheus_client import CollectorRegistry

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import Object, ObjectKey
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import Handle, Reconcile
from bowline.framework.interface.metrics import PluginMetrics
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


def context_for(
    request: Object, pod: Object | None, node: Object | None = None, client: KubeClient | None = None, **fields: Any
) -> BindContext:
    """Return the context of the first attempt for a stored request. Without a client a plugin makes no call."""
    return BindContext(decode_bind_request(request), pod, node, 1, cast(KubeClient, client), **fields)


def _idle(_: str, __: Reconcile) -> Callable[[ObjectKey], None]:
    return lambda _: None
