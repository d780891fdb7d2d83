"""What a plugin may use when it is set up in the reconciler.

A plugin keeps what it needs of the Handle; nothing is global. Only the leader's plugins are started, so nothing here
writes before ``start``.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared.api.meta import Object, ObjectKey
from shared.framework.config import Settings
from shared.kube.client import KubeClient
from shared.kube.resources import Resource
from shared.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class EventSource:
    """A watch of a plugin: objects of ``resource`` wake the requests that ``keys`` names for them."""

    resource: Resource
    keys: Callable[[Object], Iterable[ObjectKey]]
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A read-only debug page below ``/apis/v1/plugins/<name>/``: ``content()`` gives what is shown as JSON."""

    path: str
    content: Callable[[], Any]


# One pass over one key of a plugin's own queue; returns when to look again, None when done.
Reconcile = Callable[[ObjectKey], Awaitable[timedelta | None]]


@dataclass(frozen=True, slots=True)
class Handle:
    """Given to ``Plugin.setup``. ``worker`` registers a leader-only keyed queue and returns its ``add``."""

    settings: Settings
    client: KubeClient
    clock: Clock
    worker: Callable[[str, Reconcile], Callable[[ObjectKey], None]]
