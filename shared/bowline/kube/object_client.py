"""What plugins and the processes use of the client: reads and writes of objects, as calls with path and body.

It has no part in leadership, connections or watches: those are the process's client (``bowline.kube.client``), which
sends the calls. Nothing is retried here, except later pages of a list (``read_pages``).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from bowline.api.meta import ObjectKey, key_of, uid_of
from bowline.kube.accounting import current_account
from bowline.kube.calls import Call, PatchType, object_path, query, selectors
from bowline.kube.errors import Expired, InfrastructureError, KubeError, NoResponse, NotStoredError, Unreadable
from bowline.kube.resources import API_GROUPS, Resource, Selection
from bowline.kube.stored import require_stored
from bowline.kube.unreadable import UnreadableObjects, reduced_object, reduced_page
from bowline.runtime.backoff import full_jitter
from bowline.runtime.clock import Clock

# About ten seconds; a continue token is valid for five minutes.
_PAGE_TRIES = 6
_PAGE_BASE, _PAGE_CAP = timedelta(milliseconds=200), timedelta(seconds=5)

# Pages are read one after another, so that one page is in memory; a hanging one delays the others by this much.
_PAGE_TURN_S = 5.0

Page = dict[str, Any]
# Requests the page of a token; "" is the first.
Ask = Callable[[str], Awaitable[Page]]


class PageTurn:
    """The turn of one list among those of a client."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Wait for the pages that other lists are reading, up to ``_PAGE_TURN_S``: no time of the caller's.

        The consumer of a page processes it before the next turn begins, if it does not suspend.
        """
        has_turn, account = False, current_account()
        account.enter_queue()
        try:
            async with asyncio.timeout(_PAGE_TURN_S):
                has_turn = await self._lock.acquire()
        except TimeoutError:
            pass
        finally:
            account.leave_queue()
        try:
            yield
        finally:
            if has_turn:
                self._lock.release()


async def read_pages(ask: Ask, jitter: Callable[[], float]) -> AsyncGenerator[Page, None]:
    """Yield page after page. Raises the errors of ``ask``; InfrastructureError of a later page only after
    ``_PAGE_TRIES``. ``jitter`` returns a random number in [0, 1).

    If every failed request restarted the list, a long one would hardly ever complete where one request in ten fails.
    So a failed page is requested again with the same token. Except the first: its failure loses no progress, and the
    caller has its own backoff and error report.
    """
    token = ""
    while True:
        page = await (_page_with_retries(ask, token, jitter) if token else ask(token))
        if not isinstance(page.get("metadata"), dict) or not isinstance(page.get("items") or [], list):
            raise NoResponse("the answer is no list; is something between here and the API server?")
        yield page
        if page.get("items"):
            page["items"].clear()
        token = page["metadata"].get("continue", "")
        if not token:
            return


async def _page_with_retries(ask: Ask, token: str, jitter: Callable[[], float]) -> Page:
    for attempt in range(1, _PAGE_TRIES):
        try:
            return await ask(token)
        except InfrastructureError as error:
            pause = full_jitter(attempt, _PAGE_BASE, _PAGE_CAP, jitter())
            wait = max(pause, error.retry_after or pause)
        await asyncio.sleep(wait.total_seconds())
    return await ask(token)


T = TypeVar("T")
Body = Mapping[str, Any]
Objects = list[dict[str, Any]]
# What is left of a reply that is not decoded; None if nothing is recognized.
Reduce = Callable[[bytes], dict[str, Any] | None]
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


class ObjectClient(ABC):
    """Reads and writes objects with the reconciler's account. Every method raises the errors of ``bowline.errors``.

    An InfrastructureError need not be caught: the framework repeats the call. After one, and after a cancellation, a
    write may have been applied or not. Writes are allowed while the process leads: while ``run`` of a plugin runs.
    ``clock``: the process's time, which tests replace; ``random``: its random numbers, for names and jitter.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock, self.random = clock, random
        self.unreadable = UnreadableObjects(lambda _: None)
        self._page_turn = PageTurn()

    async def get(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        subresource: str = "",
        params: Mapping[str, str] = _NO_PARAMS,
    ) -> dict[str, Any]:
        """Return one object. Raises NotFound and Unreadable; of metadata alone what can be read is returned."""
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
        reduce: Reduce | None = None,
    ) -> tuple[Page, int]:
        """Return one page and its size in bytes. Raises Unreadable, unless ``reduce`` finds something in it."""
        params = selectors(selection)
        params |= {key: value for key, value in (("limit", str(limit or "")), ("continue", continue_)) if value}
        resource, namespace = selection.resource, selection.namespace
        call, path = Call("GET", "list", resource, ObjectKey(namespace, "")), resource.path(namespace) + query(params)
        return await self._exchange_json(call, path, max_bytes=max_bytes, reduce=reduce)

    def _pages(self, selection: Selection, page_size: int = PAGE_SIZE) -> AsyncGenerator[Page, None]:
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
                return [reduce(item) async for page in self._pages(selection) for item in page["items"] or ()]
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
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Create an object, or with ``name`` and ``subresource`` POST to an object's subresource.

        ``essential``: as for ``patch``; an object that is stored otherwise is deleted again. Raises AlreadyExists,
        Invalid, Forbidden.
        """
        if bool(name) != bool(subresource):
            raise ValueError("name and subresource go together: the name of a new object is in its body")
        path = resource.path(namespace, name, subresource) + query(params)
        named = name or body.get("metadata", {}).get("name", "")
        call = Call("POST", "create", resource, ObjectKey(namespace, named), subresource)
        try:
            return await self._call(call, path, body, essential=essential)
        except NotStoredError as failure:
            try:
                await self.delete(resource, *key_of(failure.stored), uid=uid_of(failure.stored), grace_period_s=0)
            except KubeError as error:
                raise NotStoredError(f"{failure}; it cannot be deleted: {error}", failure.stored) from error
            raise

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
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Patch an object. A resourceVersion in the body is a precondition (Conflict).

        ``essential``: the part of the body that must be stored as written, usually all of a merge patch. If an
        admission webhook or policy has changed it, NotStoredError is raised; a plugin need not catch it: the request
        then waits with that reason.
        """
        params = {"fieldManager": field_manager} if field_manager else {}
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

    async def _call(
        self,
        call: Call,
        path: str,
        body: Body | Sequence[Body] | None = None,
        content_type: str = "application/json",
        essential: Body | None = None,
    ) -> dict[str, Any]:
        # The reply to a delete is not read, so the metadata are enough where they are recognized.
        reduce = reduced_object if call.resource.metadata_only or call.verb == "delete" else None
        reply, _ = await self._exchange_json(call, path, body, content_type, reduce=reduce)
        require_stored(call.resource, call.key, essential or {}, reply)
        return reply

    @abstractmethod
    async def _exchange_json(
        self,
        call: Call,
        path: str,
        body: Body | Sequence[Body] | None = None,
        content_type: str = "application/json",
        *,
        max_bytes: int = 0,
        reduce: Reduce | None = None,
    ) -> tuple[dict[str, Any], int]:
        """Return the object in the reply and the reply's size in bytes; ``reduce``: of one that is not decoded."""
