"""What a plugin may use when it is set up in the reconciler.

A plugin keeps what it needs of the Handle; nothing is global. Only the leader's plugins are started, so nothing here
writes before ``start``.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from shared.api.meta import Object, ObjectKey
from shared.framework.binding.metrics import PluginMetrics
from shared.framework.config import Settings
from shared.framework.gates import FeatureGates
from shared.kube.client import KubeClient
from shared.kube.reflector import Reflector, Slim
from shared.kube.resources import Resource
from shared.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class EventSource:
    """A watch of a plugin: objects of ``resource`` wake whoever waits for them, and the requests that ``keys`` names.

    A request that said WAIT waits for the objects in its ``wake_on``; for them ``keys`` is not needed.

    ``slim`` reduces what is kept of each object, None keeps nothing of it (see the reflector's). ``attach`` is given
    the reflector before it runs, by a plugin that also reads what the watch shows. ``on_change`` is told what an
    object was and what it is, None where it is not in the selection; like every handler it only records and enqueues.
    """

    resource: Resource
    keys: Callable[[Object], Iterable[ObjectKey]] = lambda _: ()
    label_selector: str = ""
    field_selector: str = ""
    slim: Slim | None = None
    attach: Callable[[Reflector], None] | None = None
    on_change: Callable[[Object | None, Object | None], None] | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A read-only debug page below ``/debug/plugins/<name>/``: ``content()`` gives what is shown as JSON."""

    path: str
    content: Callable[[], Any]


# One pass over one key of a plugin's own queue; returns when to look again, None when done.
Reconcile = Callable[[ObjectKey], Awaitable[timedelta | None]]


@dataclass(frozen=True, slots=True)
class Handle:
    """Given to ``Plugin.setup``. ``worker`` registers a leader-only keyed queue and returns its ``add``.

    ``metrics`` makes series of the plugin's own. ``gates`` has every feature gate, also those that plugins declare.
    """

    settings: Settings
    client: KubeClient
    clock: Clock
    worker: Callable[[str, Reconcile], Callable[[ObjectKey], None]]
    metrics: PluginMetrics
    gates: FeatureGates = field(default_factory=partial(FeatureGates, {}))
