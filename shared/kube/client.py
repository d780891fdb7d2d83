"""Requests to the API server: one session, raw JSON in, raw JSON out.

Every answer that is not a success is raised as an error of ``shared.kube.errors``; nothing is repeated here, except
later pages of a list (``paging``) and, once, what the API server has rejected for credentials that turn out to have
been rotated. Whoever calls has a backoff of its own and knows what may be repeated.

The hot path carries two writes a bind at hundreds of binds a second. Hence: headers are built once, URLs are not
parsed again, bodies are not copied. HTTP/1.1 with keep-alive, because aiohttp speaks nothing newer; the pool is the
bound on concurrent requests.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from shared.api.meta import ObjectKey
from shared.kube.accounting import TimeAccount, current_account
from shared.kube.availability import Availability
from shared.kube.calls import Call, WriteClass, accept, object_path, query, selectors, warning_texts, write_class
from shared.kube.config import ClusterAccess
from shared.kube.errors import (
    Expired,
    InfrastructureError,
    LostReply,
    Unreachable,
    decode_status,
    from_response,
    from_status,
)
from shared.kube.lines import LineSplitter
from shared.kube.metrics import KubeMetrics
from shared.kube.paging import read_pages
from shared.kube.resources import EVENTS, LEASES, Resource, Selection
from shared.kube.transport import Answer, Request, Transport, TransportOptions, decoded
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.limiter import Limiter

Body = Mapping[str, Any]
Objects = list[dict[str, Any]]
_NO_PARAMS: Mapping[str, str] = {}
# The list of API groups, as metrics show it.
_GROUPS = Resource("", "", "apis", "APIGroupList", namespaced=False)

# As client-go pages: one page is about a megabyte of pods.
PAGE_SIZE = 500
# A continue token lives five minutes; a list that cannot be read in that time is given up after this many tries.
_LIST_TRIES = 3
# A watch is ended by the API server after its timeoutSeconds; this much later it is taken for dead.
_WATCH_MARGIN_S = 30


class PatchType(StrEnum):
    """How a patch is written; the value is its content type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client behaves. ``name`` is user agent and field manager, such as bowline-reconciler."""

    name: str = "bowline"
    # One request. Longer than an admission webhook may take (30 s), so that the API server reports its failure; well
    # below the budget of a plugin's call, so that a request that hangs fails as the request it is.
    timeout_s: float = 35.0
    connect_timeout_s: float = 10.0  # includes waiting for a free connection
    connections: int = 128
    watch_silence_s: float = 150.0  # bookmarks come once a minute; without any, the connection is taken for dead
    limiters: Mapping[WriteClass, Limiter] = field(default_factory=dict)
    on_warning: Callable[[Resource, ObjectKey, str], None] | None = None  # pruned fields, deprecated versions
    metrics: KubeMetrics | None = None
    clock: Clock = field(default_factory=SystemClock)


class KubeClient:
    """Access to one cluster: ``async with KubeClient(access) as client``."""

    def __init__(self, access: ClusterAccess, options: ClientOptions | None = None) -> None:
        self._options = chosen = options or ClientOptions()
        self.clock: Clock = chosen.clock
        self.metrics = chosen.metrics
        self.availability = Availability(chosen.clock)
        # The API server takes what stands before the slash for the field manager.
        agent = f"{chosen.name}/http1.1"
        pool = TransportOptions(agent, chosen.timeout_s, chosen.connect_timeout_s, chosen.connections)
        self._transport = Transport(access, pool)
        # As many as the transport's pool: requests queue here, where their time is accounted for, and not there.
        self._free = asyncio.Semaphore(chosen.connections)

    @property
    def answers(self) -> int:
        """How often the API server has answered so far, in whatever way; parts of a watch count each."""
        return self._transport.answers

    @property
    def read_only(self) -> bool:
        """Whether this process may not write, because another one leads.

        Every write but those of Leases and events then raises Unreachable, also one that waits for a limiter already.
        """
        return self._transport.read_only

    @read_only.setter
    def read_only(self, on: bool) -> None:
        self._transport.read_only = on

    async def __aenter__(self) -> "KubeClient":
        await self._transport.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests under way fail."""
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
        """Return one object."""
        path = object_path(resource, namespace, name, subresource) + query(params)
        return await self._call(Call("GET", "get", resource, ObjectKey(namespace, name)), path)

    async def serves(self, group: str, version: str) -> bool:
        """Return whether the API server lists a version of an API group.

        A 404 alone does not prove that it is not served: a proxy may have sent it.
        """
        found = await self._call(Call("GET", "get", _GROUPS, ObjectKey("", "")), "/apis")
        served = {kind["groupVersion"] for one in found["groups"] for kind in one["versions"]}
        return f"{group}/{version}" in served

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
        """Return one page as the API server sends it; without a limit that is everything."""
        params = selectors(Selection(resource, namespace, label_selector, field_selector))
        params |= {key: value for key, value in (("limit", str(limit or "")), ("continue", continue_)) if value}
        return await self._call(
            Call("GET", "list", resource, ObjectKey(namespace, "")), resource.path(namespace) + query(params)
        )

    def pages(self, selection: Selection, page_size: int = PAGE_SIZE) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a list page by page. Raises Expired if that takes longer than the API server remembers."""

        async def ask(token: str) -> dict[str, Any]:
            return await self.list(
                selection.resource,
                selection.namespace,
                label_selector=selection.label_selector,
                field_selector=selection.field_selector,
                limit=page_size,
                continue_=token,
            )

        return read_pages(ask)

    async def list_all(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Objects:
        """Return all objects as of one moment, read page by page; starts over if the API server forgets it."""
        selection = Selection(resource, namespace, label_selector, field_selector)
        for tries_left in reversed(range(_LIST_TRIES)):
            try:
                return [item async for page in self.pages(selection) for item in page["items"] or ()]
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
    ) -> dict[str, Any]:
        """Create an object, or with ``name`` and ``subresource`` POST to an object's subresource.

        ``on_send`` is called when the request leaves the client's own queues: cancelled before, it has had no effect.
        """
        if bool(name) != bool(subresource):
            raise ValueError("name and subresource go together: the name of a new object is in its body")
        path = resource.path(namespace, name, subresource) + query(params)
        named = name or body.get("metadata", {}).get("name", "")
        call = Call("POST", "create", resource, ObjectKey(namespace, named), subresource)
        return await self._call(call, path, body, on_send=on_send)

    async def patch(
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
    ) -> dict[str, Any]:
        """Patch an object. ``field_manager`` is the client's name if not given; ``force`` is for APPLY alone."""
        params = {}
        if field_manager or content_type is PatchType.APPLY:
            params["fieldManager"] = field_manager or self._options.name
        if force:
            params["force"] = "true"
        path = object_path(resource, namespace, name, subresource) + query(params)
        call = Call("PATCH", "patch", resource, ObjectKey(namespace, name), subresource)
        return await self._call(call, path, body, content_type)

    async def update(
        self, resource: Resource, namespace: str, name: str, body: Body, *, subresource: str = ""
    ) -> dict[str, Any]:
        """Replace an object; guarded by the resourceVersion in the body, if there is one."""
        path = object_path(resource, namespace, name, subresource)
        return await self._call(Call("PUT", "update", resource, ObjectKey(namespace, name), subresource), path, body)

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
        """Delete an object, if it still is the one with this UID and version; else Conflict."""
        guards = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
        body: dict[str, Any] = {"preconditions": guards} if guards else {}
        if grace_period_s is not None:
            body["gracePeriodSeconds"] = grace_period_s
        path = object_path(resource, namespace, name, "")
        return await self._call(Call("DELETE", "delete", resource, ObjectKey(namespace, name)), path, body)

    async def watch(
        self,
        selection: Selection,
        resource_version: str,
        timeout_s: int,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events after a resourceVersion, bookmarks included, until the API server ends the watch.

        An ERROR event is raised as the error it carries, Expired above all; a watch that breaks off, as LostReply.
        ``on_open`` is called when the watch stands. Close it when done: ``contextlib.aclosing``.
        """
        resource = selection.resource
        params = selectors(selection) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        chunks = self._transport.stream(
            resource.path(selection.namespace) + query(params),
            accept=accept(resource, "watch"),
            total_s=timeout_s + _WATCH_MARGIN_S,
            silence_s=self._options.watch_silence_s,
        )
        lines = LineSplitter()
        async with aclosing(chunks):
            async for chunk in chunks:
                if not chunk and on_open is not None:
                    on_open()
                for line in lines.feed(chunk):
                    event = decoded(line)
                    if event.get("type") == "ERROR":
                        raise from_status(decode_status(event["object"]))
                    if not isinstance(event.get("object"), dict) or "metadata" not in event["object"]:
                        raise LostReply("an event without an object; is something between here and the API server?")
                    yield event
        if lines.unfinished:
            raise LostReply("the watch ended in the middle of an event")

    async def _call(
        self,
        call: Call,
        path: str,
        body: Body | Sequence[Body] | None = None,
        content_type: str = "application/json",
        on_send: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        options = self._options
        account = current_account()
        if body is not None and options.limiters:
            await self._limit(call, account)
        request = Request(
            call.method,
            path,
            accept(call.resource, call.verb),
            body=None if body is None else orjson.dumps(body),
            content_type=content_type if body is not None else "",
            # A Lease does not queue behind writes that hang.
            apart=call.verb == "list" or call.resource == LEASES,
            fenced=body is not None and call.resource not in (LEASES, EVENTS),
        )
        started = self.clock.monotonic()
        code = "lost"
        try:
            answer = await self._exchange(request, account, on_send)
            code = str(answer.code)
        except InfrastructureError as error:
            code = "unreachable" if isinstance(error, Unreachable) else code
            self.availability.observe(error)
            raise
        finally:
            if options.metrics is not None:
                options.metrics.observe(call.verb, call.label, code, self.clock.monotonic() - started)
        if options.on_warning is not None and "Warning" in answer.headers:
            for text in warning_texts(answer.headers.getall("Warning")):
                options.on_warning(call.resource, call.key, text)
        if not 200 <= answer.code < 300:
            failure = from_response(answer.code, answer.headers, answer.body)
            self.availability.observe(failure)
            raise failure
        found = decoded(answer.body)
        self.availability.observe(None)
        return found

    async def _exchange(self, request: Request, account: TimeAccount, on_send: Callable[[], None] | None) -> Answer:
        """Send one request by a free connection and read its reply."""
        if not request.apart:
            await self._connection(account)
        if on_send is not None:
            on_send()
        account.enter_api()
        try:
            return await self._transport.send(request)
        finally:
            account.leave_api()
            if not request.apart:
                self._free.release()

    async def _connection(self, account: TimeAccount) -> None:
        """Wait for a free connection. Raises Unreachable if none gets free in time: nothing has been sent."""
        if not self._free.locked():
            await self._free.acquire()  # without a pause
            return
        limit = self._options.connect_timeout_s
        account.enter_queue()
        try:
            async with asyncio.timeout(limit):
                await self._free.acquire()
        except TimeoutError as error:
            why = f"all {self._options.connections} connections to the API server were in use for {limit:g} s"
            raise Unreachable(why) from error
        finally:
            account.leave_queue()

    async def _limit(self, call: Call, account: TimeAccount) -> None:
        kind = write_class(call.resource, call.subresource)
        limiter = self._options.limiters.get(kind) if kind else None
        if kind is None or limiter is None:
            return
        account.enter_queue()
        try:
            waited = await limiter.wait()
        finally:
            account.leave_queue()
        if waited and self._options.metrics is not None:
            self._options.metrics.limited(kind, waited)
