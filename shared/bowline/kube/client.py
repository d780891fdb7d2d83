"""Client of the API server: one session, raw JSON in, raw JSON out.

Every response that is not a success is raised as an error of ``bowline.kube.errors``. Nothing is retried here,
except later pages of a list (``read_pages``) and, once, a request that the API server has rejected for credentials
that have been rotated since. Callers have their own backoff and know what is safe to retry.

The hot path carries two writes per bind at hundreds of binds per second. Hence headers are built once, URLs are not
parsed again, bodies are not copied. HTTP/1.1 with keep-alive, because aiohttp supports nothing newer; the pool bounds
the concurrent requests.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, TypeVar

import orjson

from bowline.api.meta import ObjectKey, key_of, uid_of
from bowline.kube.accounting import Connections, TimeAccount, current_account, open_call
from bowline.kube.availability import Availability
from bowline.kube.calls import Call, accept, object_path, query, selectors, warning_texts
from bowline.kube.config import ClusterAccess
from bowline.kube.denial import Denial
from bowline.kube.errors import (
    ConnectionFailed,
    Expired,
    Forbidden,
    InfrastructureError,
    KubeError,
    NotStoredError,
    Unreadable,
    from_response,
)
from bowline.kube.late_writes import WrittenObject, current_writes, sent_write
from bowline.kube.messages import Answer, PatchType, Request, Transport, TransportOptions
from bowline.kube.metrics import KubeMetrics
from bowline.kube.object_client import Body, Objects
from bowline.kube.own_writes import OwnWrites
from bowline.kube.paging import Page, PageTurn, read_pages
from bowline.kube.permits import require_permit
from bowline.kube.resources import API_GROUPS, EVENTS, LEASES, SELF_SUBJECT_REVIEWS, Resource, Selection
from bowline.kube.stored import require_stored
from bowline.kube.unreadable import UnreadableObjects, parse_json, reduced_object, reduced_page
from bowline.kube.watching import read_events
from bowline.runtime.clock import Clock, SystemClock

T = TypeVar("T")
_NO_PARAMS: Mapping[str, str] = {}

# Of a list, and the bytes that a page should have at most: tenants decide how large objects are.
PAGE_SIZE = 50
_PAGE_BYTES = 2 * 2**20
# The bytes of a page that are read. A single object has at most 3 MB.
MAX_PAGE_BYTES = 8 * 2**20
# After a small page the next ones grow again by this factor.
_GROWTH = 4
# A continue token expires after five minutes; maximum attempts for a list that takes longer.
_LIST_TRIES = 3
# The API server ends a watch after its timeoutSeconds; this much later the connection is considered dead.
_WATCH_MARGIN_S = 30
# Sent while read-only: a standby acquires the Lease with them, and events change nothing. A review stores nothing.
_UNFENCED = (LEASES, EVENTS, SELF_SUBJECT_REVIEWS)

NewTransport = Callable[[ClusterAccess, TransportOptions], Transport]


def _http_transport(access: ClusterAccess, options: TransportOptions) -> Transport:
    # Imported here, because `bowline lint` imports this module with the plugins, and needs no networking.
    from bowline.kube.transport import HTTPTransport  # noqa: PLC0415

    return HTTPTransport(access, options)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Configuration of a client. ``name`` is user agent and field manager, such as bowline-reconciler."""

    name: str = "bowline"
    # Timeout of one request. Longer than an admission webhook may take (30 s), so that the API server can report its
    # failure; well below the budget of a plugin's call, so that a hanging request fails as a request.
    timeout_s: float = 35.0
    connect_timeout_s: float = 10.0  # includes waiting for a free connection
    connections: int = 128
    watch_silence_s: float = 150.0  # bookmarks arrive once a minute; without any, the connection is considered dead
    on_warning: Callable[[Resource, ObjectKey, str], None] | None = None  # pruned fields, deprecated versions
    metrics: KubeMetrics | None = None
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=Random)  # spreads load and names events; guards nothing
    transport: NewTransport = _http_transport


class KubeClient:
    """Access to one cluster: ``async with KubeClient(access) as client``."""

    def __init__(self, access: ClusterAccess, options: ClientOptions | None = None) -> None:
        self._options = options = options or ClientOptions()
        self.clock: Clock = options.clock
        self.random, self.metrics = options.random, options.metrics
        self._unanswered_at: float | None = None
        self.availability = Availability(options.clock, options.random.random)
        self.own_writes = OwnWrites()
        self.unreadable = UnreadableObjects(
            options.metrics.count_unreadable if options.metrics is not None else lambda _: None
        )
        # The API server uses the part before the slash as the field manager.
        pool = TransportOptions(
            f"{options.name}/http1.1", options.timeout_s, options.connect_timeout_s, options.connections
        )
        self._transport = options.transport(access, pool)
        # The size of the transport's pool: requests queue here, where their time is accounted for.
        self._connections = Connections(options.connections, options.connect_timeout_s)
        self._page_turn = PageTurn()

    @property
    def answers(self) -> int:
        """Number of responses received so far, of any status; each chunk of a watch counts."""
        return self._transport.answers

    @property
    def read_only(self) -> bool:
        """Whether this process must not write: all writes but Leases and Events then raise ConnectionFailed."""
        return self._transport.read_only

    def permit_writes(self, left_s: Callable[[], float]) -> None:
        """Permit writes as long as ``left_s``, called when each has its connection, returns a positive number."""
        self._transport.permit_writes(left_s)

    def forbid_writes(self) -> None:
        """Make the client read-only: this process does not lead any more."""
        self.permit_writes(lambda: 0.0)

    async def __aenter__(self) -> "KubeClient":
        await self._transport.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        await self._transport.close()

    async def get(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        subresource: str = "",
        params: Mapping[str, str] = _NO_PARAMS,
    ) -> dict[str, Any]:
        """Return one object. Raises Unreadable; of metadata alone what can be read of them is returned."""
        path = object_path(resource, namespace, name, subresource) + query(params)
        return await self._call(Call("GET", "get", resource, ObjectKey(namespace, name)), path)

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server lists the resource. A 404 does not say so: a proxy may have sent it."""
        discovery = Call("GET", "get", API_GROUPS, ObjectKey("", ""))
        api_groups = (await self._call(discovery, "/apis"))["groups"]
        versions = {kind["groupVersion"] for entry in api_groups for kind in entry["versions"]}
        if resource.group and resource.api_version not in versions:
            return False
        served_resources = (await self._call(discovery, resource.prefix))["resources"]
        return any(entry["name"] == resource.plural for entry in served_resources)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> dict[str, Any]:
        """Return one page as the API server sends it; without a limit, the whole list.

        If something in it is not decoded, a page of fewer objects.
        """
        selection = Selection(resource, namespace, label_selector, field_selector)
        return (await self._page(selection, limit, continue_))[0]

    async def _page(self, selection: Selection, limit: int, token: str, max_bytes: int = 0) -> tuple[Page, int, int]:
        """Return one page, its size in bytes, and the limit that it was asked for with.

        A page that is not decoded, or has more than ``max_bytes``, is asked for with half as many objects; a single
        object is reduced to its metadata. Raises Unreadable if even these have an unknown form.
        """
        while True:
            try:
                page, size = await self._list(selection, limit, token, max_bytes)
            except Unreadable as error:
                if limit != 1:
                    limit = (limit or PAGE_SIZE) // 2
                    continue
                metadata = replace(selection, resource=selection.resource.as_metadata())
                page, size = await self._list(metadata, limit, token, reduce=reduced_page)
                for item in page.get("items") or ():
                    self.unreadable.add(selection.resource, item, error.message)
            return page, size, limit

    async def _list(
        self,
        selection: Selection,
        limit: int,
        continue_: str,
        max_bytes: int = 0,
        reduce: Callable[[bytes], dict[str, Any] | None] | None = None,
    ) -> tuple[Page, int]:
        """Return one page and its size in bytes. Raises Unreadable, unless ``reduce`` finds something in it."""
        params = selectors(selection)
        params |= {key: value for key, value in (("limit", str(limit or "")), ("continue", continue_)) if value}
        resource, namespace = selection.resource, selection.namespace
        call, path = Call("GET", "list", resource, ObjectKey(namespace, "")), resource.path(namespace) + query(params)
        return await self._exchange_json(call, path, max_bytes=max_bytes, reduce=reduce)

    def pages(self, selection: Selection, page_size: int = PAGE_SIZE) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a list page by page; the items of a page are released when the next one is requested.

        After a page, the next has as many objects of its average size as ``_PAGE_BYTES`` hold. A page of more than
        ``MAX_PAGE_BYTES``, or with an object that is not decoded, is asked for with half as many objects; a single
        such object is reduced to its metadata, or to its identity (``kube.unreadable``). Raises Expired if the
        continue token expires on the way.
        """
        limit = page_size

        async def ask(token: str) -> dict[str, Any]:
            nonlocal limit
            async with self._page_turn.taken():
                page, size, asked = await self._page(selection, limit, token, MAX_PAGE_BYTES)
            fitting = max(1, len(page.get("items") or ()) * _PAGE_BYTES // size)
            limit = min(page_size, asked * _GROWTH, fitting)
            return page

        return read_pages(ask, self.random.random)

    async def list_all(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Objects:
        """Return all objects of one consistent snapshot. For few or small objects: memory holds all of them."""
        selection = Selection(resource, namespace, label_selector, field_selector)
        return [*await self.list_reduced(selection, lambda item: item)]

    async def list_reduced(self, selection: Selection, reduce: Callable[[dict[str, Any]], T]) -> Sequence[T]:
        """Return the part that ``reduce`` returns of each object of one consistent snapshot, read page by page.

        Memory holds one page and these parts. Restarts after Expired, ``_LIST_TRIES`` in all.
        """
        for tries_left in reversed(range(_LIST_TRIES)):
            try:
                return [reduce(item) async for page in self.pages(selection) for item in page["items"] or ()]
            except Expired:
                if not tries_left:
                    raise
        raise AssertionError("the loop above returns or raises")

    async def create(
        self,
        resource: Resource,
        namespace: str,
        body: Body,
        *,
        name: str = "",
        subresource: str = "",
        params: Mapping[str, str] = _NO_PARAMS,
        on_send: Callable[[], None] | None = None,
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Create an object, or with ``name`` and ``subresource`` POST to an object's subresource.

        ``on_send`` is called when the request leaves the client's own queues; if cancelled before, or if ``on_send``
        raises, it has had no effect. ``essential``: as for ``patch``; an object that is stored otherwise is deleted.
        """
        if bool(name) != bool(subresource):
            raise ValueError("name and subresource go together: the name of a new object is in its body")
        path = resource.path(namespace, name, subresource) + query(params)
        named = name or body.get("metadata", {}).get("name", "")
        call = Call("POST", "create", resource, ObjectKey(namespace, named), subresource)
        try:
            return await self._call(call, path, body, on_send=on_send, essential=essential)
        except NotStoredError as failure:
            try:
                await self.delete(resource, *key_of(failure.stored), uid=uid_of(failure.stored), grace_period_s=0)
            except KubeError as error:
                raise NotStoredError(f"{failure}; it cannot be deleted: {error}", failure.stored) from error
            raise

    async def patch(  # noqa: PLR0913 - the options of the API server
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Body | Sequence[Body],
        *,
        subresource: str = "",
        content_type: PatchType = PatchType.MERGE,
        field_manager: str = "",
        force: bool = False,
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Patch an object. ``field_manager`` defaults to the client's name; ``force`` is only valid with APPLY.

        ``essential``: the part of a merge patch that must be stored as written, else NotStoredError is raised.
        """
        params = {"force": "true"} if force else {}
        if field_manager or content_type is PatchType.APPLY:
            params["fieldManager"] = field_manager or self._options.name
        path = object_path(resource, namespace, name, subresource) + query(params)
        call = Call("PATCH", "patch", resource, ObjectKey(namespace, name), subresource)
        return await self._call(call, path, body, content_type, essential=essential)

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Body,
        *,
        subresource: str = "",
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Replace an object; a resourceVersion in the body is a precondition (Conflict). ``essential``: see patch."""
        call = Call("PUT", "update", resource, ObjectKey(namespace, name), subresource)
        return await self._call(call, object_path(resource, namespace, name, subresource), body, essential=essential)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_s: int | None = None,
    ) -> dict[str, Any]:
        """Delete an object. ``uid`` and ``resource_version`` are preconditions (Conflict)."""
        guards = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        body: dict[str, Any] = {"preconditions": guards} if guards else {}
        if grace_period_s is not None:
            body["gracePeriodSeconds"] = grace_period_s
        path = object_path(resource, namespace, name, "")
        return await self._call(Call("DELETE", "delete", resource, ObjectKey(namespace, name)), path, body)

    def watch(
        self,
        selection: Selection,
        resource_version: str,
        timeout_s: int,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events after a resourceVersion, bookmarks included, until the API server ends the watch.

        An object that is not decoded is reduced to its metadata; one of a custom resource also ends the watch. An
        ERROR event is raised as the error that it carries, usually Expired; a broken watch as NoResponse. Unreadable:
        the watch cannot pass the next event. ``on_open`` is called when the API server has accepted the watch. Close
        it when done: ``contextlib.aclosing``.
        """

        def stream(selected: Selection, version: str) -> AsyncGenerator[bytes, None]:
            params = selectors(selected) | {
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(timeout_s),
            }
            return self._transport.stream(
                selected.resource.path(selected.namespace) + query(params),
                accept=accept(selected.resource, "watch"),
                total_s=timeout_s + _WATCH_MARGIN_S,
                silence_s=self._options.watch_silence_s,
            )

        return read_events(stream, selection, resource_version, self.unreadable, on_open)

    async def _call(
        self,
        call: Call,
        path: str,
        body: Body | Sequence[Body] | None = None,
        content_type: str = "application/json",
        on_send: Callable[[], None] | None = None,
        essential: Body | None = None,
    ) -> dict[str, Any]:
        # The reply to a delete is not read, so the metadata are enough where they are recognized.
        reduce = reduced_object if call.resource.metadata_only or call.verb == "delete" else None
        reply, _ = await self._exchange_json(call, path, body, content_type, on_send, reduce=reduce)
        require_stored(call.resource, call.key, essential or {}, reply)
        return reply

    async def _exchange_json(
        self,
        call: Call,
        path: str,
        body: Body | Sequence[Body] | None = None,
        content_type: str = "application/json",
        on_send: Callable[[], None] | None = None,
        *,
        max_bytes: int = 0,
        reduce: Callable[[bytes], dict[str, Any] | None] | None = None,
    ) -> tuple[dict[str, Any], int]:
        """Return the object in the reply and the reply's size in bytes; ``reduce``: of one that is not decoded."""
        require_permit(call)
        request = Request(
            call.method,
            path,
            accept(call.resource, call.verb),
            body=None if body is None else orjson.dumps(body),
            content_type=content_type if body is not None else "",
            # A Lease must not queue behind hanging writes.
            separate_pool=call.verb == "list" or call.resource in (LEASES, SELF_SUBJECT_REVIEWS),
            is_fenced=body is not None and call.resource not in _UNFENCED,
            max_body=max_bytes,
        )
        writes, target = current_writes(), WrittenObject(call.resource, call.key)
        exchange = self.own_writes.observing(target, body, partial(self._answered, call, request, reduce))
        if writes is None:
            return await exchange(on_send)
        if body is None or not request.is_fenced:
            return await writes.observed(target, call.verb, exchange(on_send))
        with writes.sending(write := sent_write(target, call.subresource, body), self.clock.monotonic):
            return await writes.observed(target, call.verb, exchange(partial(write.send, on_send)))

    async def _answered(
        self,
        call: Call,
        request: Request,
        reduce: Callable[[bytes], dict[str, Any] | None] | None,
        on_send: Callable[[], None] | None,
    ) -> tuple[dict[str, Any], int]:
        options, account, started_at = self._options, current_account(), self.clock.monotonic()
        code, is_lease = "lost", call.resource == LEASES
        try:
            with open_call(call, started_at):
                answer = await self._exchange(request, account, on_send)
            code = str(answer.code)
        except InfrastructureError as error:
            code = "unreachable" if isinstance(error, ConnectionFailed) else code
            self.availability.observe(error, is_lease=is_lease)
            raise
        finally:
            if options.metrics is not None:
                options.metrics.observe(call.verb, call.label, code, self.clock.monotonic() - started_at)
        if options.on_warning is not None and "Warning" in answer.headers:
            for text in warning_texts(answer.headers.getall("Warning")):
                options.on_warning(call.resource, call.key, text)
        if not 200 <= answer.code < 300:
            failure = from_response(answer.code, answer.headers, answer.body, call.write)
            self.availability.observe(failure, is_lease=is_lease)
            self._note_unanswered(request, failure)
            policy = Denial.of(failure.message).own_policy if isinstance(failure, Forbidden) else ""
            if policy and options.metrics is not None:
                options.metrics.denied_by_policy(policy)
            raise failure
        self.availability.observe(None, is_lease=is_lease)
        if answer.is_cut:
            raise Unreadable(f"{call.label} {call.key}: the reply has more than {request.max_body} bytes")
        try:
            return parse_json(answer.body), len(answer.body)
        except Unreadable as error:
            if call.key.name:
                item = reduced_object(answer.body) or {"metadata": call.key._asdict()}
                self.unreadable.add(call.resource, item, error.message)
            if reduce is None or (reply := reduce(answer.body)) is None:
                raise Unreadable(f"{call.label} {call.key}: {error.message}") from error
            return reply, len(answer.body)

    def answered_for(self, duration: timedelta) -> bool:
        """Return whether every write of the last ``duration``, except of Leases and events, has been answered."""
        unanswered_at = self._unanswered_at
        return unanswered_at is None or self.clock.monotonic() - unanswered_at >= duration.total_seconds()

    def _note_unanswered(self, request: Request, error: KubeError | None) -> None:
        """Record when a write ended that may still be applied. ``error``: None for a call that was cancelled."""
        may_be_applied = error is None or (isinstance(error, InfrastructureError) and error.may_have_been_applied)
        if request.is_fenced and may_be_applied:
            self._unanswered_at = self.clock.monotonic()

    async def _exchange(self, request: Request, account: TimeAccount, on_send: Callable[[], None] | None) -> Answer:
        """Send one request on a free connection and read its reply."""
        if not request.separate_pool:
            await self._connections.acquire(account)
        account.enter_api()
        try:
            if on_send is not None:
                on_send()
            return await self._transport.send(request)
        except InfrastructureError as error:
            self._note_unanswered(request, error)
            raise
        except asyncio.CancelledError:
            self._note_unanswered(request, None)
            raise
        finally:
            account.leave_api()
            if not request.separate_pool:
                self._connections.release()
