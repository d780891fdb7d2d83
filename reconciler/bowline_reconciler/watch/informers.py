"""The watches of the reconciler: unfinished BindRequests, unbound pods, and of the nodes metadata and taints.

Memory follows the pending work, not the size of the cluster: bound pods and Succeeded requests leave these watches.
Event handlers here only maintain indexes and pass keys on; reading, deciding and writing is the reconciler's task.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bowline.api.bindrequest import BindRequest, Phase, decode_bind_request
from bowline.api.meta import (
    Object,
    ObjectKey,
    ObjectUID,
    ResourceVersion,
    has_ended,
    is_deleting,
    key_of,
    parse_time,
    status_of,
    uid_of,
    version_of,
)
from bowline.api.node_view import node_view, reduced_node
from bowline.api.reduction import reduced_pod, reduced_request
from bowline.api.taints import MAX_TOLERATIONS, is_of_health, untolerated
from bowline.kube.client import KubeClient
from bowline.kube.errors import NoResponse, NotFound, Unreadable
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, NODES, PODS, UNFINISHED_BINDREQUESTS, Resource, Selection
from bowline.kube.store import Store
from bowline.kube.writes import WrittenObject
from bowline_reconciler.decide.snapshot import Absent, PodView, is_finished, is_withdrawn, pod_view
from bowline_reconciler.watch.bound_pods import BoundPodWatch, SentBind
from bowline_reconciler.watch.pod_cache import PodCache
from bowline_reconciler.watch.request_cache import RequestCache

UNBOUND = "spec.nodeName="
# Nodes of a page of a list: one has up to 50 KB, most of it the names of its images.
NODE_PAGE = 100


@dataclass(frozen=True, slots=True)
class EventHandlers:
    """Called by the watches; they only record and enqueue.

    ``on_cached``: the cached request or its pod is another. ``on_change``: another client has changed it, or its node
    has changed. ``on_delete``: an unfinished request has left the watch, because it has Succeeded or was deleted.
    ``on_object``: an object that requests may wait for has changed. ``sent_bind``: returns that of a pod.
    """

    on_cached: Callable[[ObjectKey], None]
    on_change: Callable[[ObjectKey], None]
    on_delete: Callable[[ObjectKey], None]
    on_object: Callable[[Resource, ObjectKey], None]
    sent_bind: Callable[[ObjectKey], SentBind | None]


def transform_request(request: dict[str, Any]) -> Object | None:
    """Transform: remove the writers' bookkeeping; returns None for a Succeeded request."""
    return None if status_of(request).get("phase") == Phase.SUCCEEDED.value else reduced_request(request)


@dataclass(frozen=True, slots=True)
class Listed:
    """The stored requests, compared with the cached ones."""

    began: float = 0.0  # when the list was requested, monotonic
    stale: Collection[ObjectKey] = ()  # whose cached version differs
    newest: datetime | None = None  # their latest creationTimestamp; None: there are none


class Informers:
    """The four reflectors. A request has the key of its pod. ``schedulers``: whose pods are bound."""

    def __init__(self, client: KubeClient, handlers: EventHandlers, schedulers: Collection[str] = ()) -> None:
        self._client = client
        self._handlers = handlers
        shown_requests = Store(keeps_identities=True)  # one that is not decoded ends Invalid
        self.request_cache = RequestCache(shown_requests, lambda: self.requests.version)
        self.requests = Reflector(
            client,
            UNFINISHED_BINDREQUESTS,
            listener=Listener(self._request_event, self.request_cache.drop_passed),
            transform=transform_request,
            fallback=True,
            store=shown_requests,
        )
        self._ill_since: dict[str, float] = {}  # by node with a taint of its health, monotonic
        self.pod_cache = PodCache(self.request_cache.__contains__)
        bound_pods = self.bound_pods = BoundPodWatch(client, schedulers, handlers.sent_bind, self.pod_cache.offer)
        self.pods = Reflector(
            client,
            Selection(PODS, field_selector=UNBOUND),
            listener=Listener(self._pod_event),
            transform=self._transform_pod,
            store=self.pod_cache,
        )
        self.nodes = Reflector(
            client,
            Selection(NODES),
            listener=Listener(self._node_event),
            transform=reduced_node,
            page_size=NODE_PAGE,
        )
        self.reflectors = {
            "bindrequests": self.requests,
            "pods": self.pods,
            "nodes": self.nodes,
            "boundpods": bound_pods.reflector,
        }

    @property
    def stores(self) -> dict[Resource, Store]:
        """The stores by resource."""
        return {BINDREQUESTS: self.requests.store, PODS: self.pods.store, NODES: self.nodes.store}

    def in_contact(self) -> timedelta:
        """Return for how long those that decisions read have been connected to the API server; zero if one is not.

        That of bound pods only spares a read: without it, for example without its right, waits expire as well.
        """
        return min(reflector.in_contact() for reflector in (self.requests, self.pods, self.nodes))

    async def compare(self) -> Listed:
        """Compare the cached requests with those of the API server.

        A synced cache may still lack the previous leader's last writes. Raises the client's errors, and NoResponse
        until those that decisions read are listed again after an outage in which etcd may have been restored.
        """
        if any(reflector.may_be_restored for reflector in (self.requests, self.pods, self.nodes)):
            raise NoResponse("the watches are not connected again yet")
        began, newest = self._client.clock.monotonic(), None
        versions: dict[ObjectKey, ResourceVersion] = {}
        selection = replace(self.requests.selection, resource=BINDREQUESTS.as_metadata())
        async for page in self._client.pages(selection):
            items = page["items"] or ()
            versions |= {key_of(item): version_of(item) for item in items}
            creation_times = (parse_time(item["metadata"].get("creationTimestamp")) for item in items)
            newest = max((time for time in (newest, *creation_times) if time is not None), default=None)
        store = self.requests.store
        changed_keys = {key for key, cached_object in store.items() if versions.get(key) != version_of(cached_object)}
        # Without a field selector, most requests that are not in the cache have Succeeded.
        unknown = {key for key in versions if key not in store} if selection.field_selector else set()
        return Listed(began, changed_keys | unknown, newest)

    async def probe(self) -> None:
        """Make one small call that reads from etcd, as every bind does. Raises the client's errors."""
        await self._client.list(BINDREQUESTS.as_metadata(), limit=1)

    async def get_request(self, key: ObjectKey) -> dict[str, Any] | Absent:
        """Read a request live; NOT_FOUND if it does not exist."""
        try:
            return reduced_request(await self._client.get(BINDREQUESTS, key.namespace, key.name))
        except NotFound:
            return Absent.NOT_FOUND
        except Unreadable:
            return await self._client.get(BINDREQUESTS.as_metadata(), key.namespace, key.name)

    async def read_request(self, key: ObjectKey) -> BindRequest | Absent:
        """Read a request live; returns its newest version, which is cached. NOT_FOUND if it does not exist."""
        before = self.request_cache.get(key)
        raw_request = await self.get_request(key)
        if isinstance(raw_request, Absent):
            self.request_cache.end(key, before)
            return raw_request
        return self.request_cache.confirm(decode_bind_request(raw_request), before)

    def pod(self, key: ObjectKey) -> Object | None:
        """Return the cached pod, if it is unbound; absence proves nothing."""
        return self.pods.store.get(key)

    def node(self, name: str) -> Object | None:
        """Return the node's cached metadata; absence proves nothing."""
        return self.nodes.store.get(ObjectKey("", name))

    def offer_node(self, node: Object) -> None:
        """A node that was read live without a taint of its health was healthy meanwhile, whatever the watch shows."""
        if not _is_ill(node):
            self._ill_since.pop(node["metadata"]["name"], None)

    def node_ill_for(self, name: str) -> timedelta:
        """Return for how long the node has been seen with taints of its health only; zero if it has none."""
        now = self._client.clock.monotonic()
        return timedelta(seconds=now - self._ill_since.get(name, now))

    def still_wanted(self, request: BindRequest, node_uid: ObjectUID | None) -> bool:
        """Return whether, by the caches, an attempt for the request may continue.

        ``node_uid``: of the cached node when the attempt began, None if there was none: that one may have been newer
        than the cache; its absence proves nothing.
        """
        current, node = self.request_cache.get(request.key), self.node(request.selected_node)
        raw = self.pod(request.pod_key)
        pod = pod_view(raw) if raw is not None else None
        is_same = node is not None and uid_of(node) == node_uid and not is_deleting(node)
        return not is_withdrawn(
            request,
            current if current is not None else Absent.NOT_IN_CACHE,
            pod if pod is not None else Absent.NOT_IN_CACHE,
            node_is_lost=(node_uid is not None and not is_same) or _repels(node, pod),
        )

    def oldest_age(self) -> timedelta:
        """Return the age of the oldest cached request that is neither Succeeded nor Failed; zero if there is none.

        At least: its creation is stored in whole seconds.
        """
        now = self._client.clock.now()
        pending = (request for request in self.request_cache.values() if request.phase is Phase.PENDING)
        oldest = max((now - request.created for request in pending if request.created), default=timedelta(0))
        return max(oldest - timedelta(seconds=1), timedelta(0))

    def _request_event(self, _: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
        before = self.request_cache.get(key)
        shown_request = decode_bind_request(new, before) if new is not None else None
        self.request_cache.deliver(key, shown_request, is_trusted=self.requests.trusts_versions)
        self.pod_cache.pack(key)
        if shown_request is not None:
            self._judge(self.requests, key, shown_request.resource_version)
        elif before is None or not is_finished(before):
            self._handlers.on_delete(key)
        self._handlers.on_object(BINDREQUESTS, key)

    def _transform_pod(self, pod: dict[str, Any]) -> Object | None:
        """Leave out ended pods unless a request names them: they are never bound, and can accumulate."""
        return reduced_pod(pod) if not has_ended(pod) or key_of(pod) in self.request_cache else None

    def _pod_event(self, _: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
        if key in self.request_cache:
            self._judge(self.pods, key, version_of(new) if new is not None else "")
        self._handlers.on_object(PODS, key)

    def _judge(self, watch: Reflector, key: ObjectKey, version: str) -> None:
        """Report a change of a request or its pod, unless it is known as a write of this process.

        A list may show such a write together with another client's. What has left the watch has no version.
        """
        on_foreign = partial(self._handlers.on_change, key)
        self._handlers.on_cached(key)
        if watch.version and version:
            self._client.own_writes.judge(WrittenObject(watch.selection.resource, key), version, on_foreign)
        else:
            on_foreign()

    def _node_event(self, _: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        if new is not None and _is_ill(new):
            self._ill_since.setdefault(key.name, self._client.clock.monotonic())
        else:
            self._ill_since.pop(key.name, None)
        self._handlers.on_object(NODES, key)
        is_tainted = new is not None and "spec" in new and (old is None or new["spec"] != old.get("spec"))
        # A list may skip the deletion of a node that was created again.
        is_another = old is not None and new is not None and uid_of(old) != uid_of(new)
        if new is None or is_deleting(new) or is_tainted or is_another:
            # Another wait of these requests would last until its timeout. Nodes are deleted, cordoned and tainted too
            # rarely to need an index.
            for request in list(self.request_cache.values()):
                if request.selected_node == key.name:
                    self._handlers.on_change(request.key)


def _is_ill(node: Object) -> bool:
    return any(map(is_of_health, (node.get("spec") or {}).get("taints") or ()))


def _repels(node: Object | None, pod: PodView | None) -> bool:
    """Return whether the node has a taint that the pod does not tolerate. Absence from a cache proves nothing."""
    if node is None or pod is None or "spec" not in node or len(pod.tolerations) > MAX_TOLERATIONS:
        return False
    return untolerated(node_view(node).taints, pod.tolerations) is not None
