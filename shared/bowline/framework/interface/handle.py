"""What a plugin receives at setup in the reconciler.

A plugin keeps the parts of the Handle that it needs; there are no globals.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from bowline.api.meta import Object, ObjectKey
from bowline.framework.interface.metrics import PluginMetrics
from bowline.kube.object_client import ObjectClient
from bowline.kube.reflector import Reflector, Transform
from bowline.kube.resources import Resource
from bowline.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class EventSource:
    """A watch of a plugin. A changed object wakes the requests that wait for it, and those that ``keys`` returns.

    - ``namespace``: the only one that is watched; empty for all. A role in it is enough then.
    - ``keys``: the requests that an object concerns. Not needed for requests in WAIT whose ``wake_on`` names the
      object.
    - ``transform``: trims each object before caching; returning None does not cache it (see ``Reflector``).
    - ``attach``: called with the reflector before it runs, for a plugin that also reads its cache: ``store`` is a
      mapping of keys to objects, complete when ``run`` is called.
    - ``on_change``: called with an object's old and new state, None where it is outside of the selection. Like every
      event handler it must only record and enqueue.
    - ``optional``: the resource is another project's, and the plugin works without it: the process does not wait for
      it, and no metric reports the loss of contact.
    - ``queueing_hint``: whether an object in this state may end the wait of a request whose ``wake_on`` names it
      (kube-scheduler's QueueingHint, level-triggered). Without it every change may; a deletion always may.

    An exception of ``keys``, ``transform`` or ``on_change`` is counted and affects that object only; after one of
    ``queueing_hint`` the request is requeued.
    """

    resource: Resource
    keys: Callable[[Object], Iterable[ObjectKey]] = lambda _: ()
    label_selector: str = ""
    field_selector: str = ""
    transform: Transform | None = None
    attach: Callable[[Reflector], None] | None = None
    on_change: Callable[[Object | None, Object | None], None] | None = None
    queueing_hint: Callable[[ObjectKey, Object], bool] | None = None
    namespace: str = ""
    optional: bool = False


# Reconciles one key of a plugin's own queue; returns the delay after which to requeue it (at least a tenth of a
# second), None when done. A key whose reconcile raises is retried.
Reconcile = Callable[[ObjectKey], Awaitable[timedelta | None]]


@dataclass(frozen=True, slots=True)
class Handle:
    """Passed to ``BindingPlugin.setup``.

    - ``client``: the API server. Writes are allowed during a term of leadership only.
    - ``clock``: wall clock and monotonic time; tests replace it.
    - ``worker(name, reconcile)``: registers a keyed queue that runs on the leader only; returns the function that
      adds a key, which a standby ignores. A key is reconciled once at a time, different keys concurrently, each
      within the budget ``reconcile_s``. However many keys of one namespace hang, other namespaces have room: it is
      the tenant. A crash loses the keys: ``run`` enqueues what is needed. Raises ValueError for a name used twice.
    - ``metrics``: creates the plugin's own series.
    """

    client: ObjectClient
    clock: Clock
    worker: Callable[[str, Reconcile], Callable[[ObjectKey], None]]
    metrics: PluginMetrics
