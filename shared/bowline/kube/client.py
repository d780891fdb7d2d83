"""Client of the API server: raw JSON in, raw JSON out.

Every response that is not a success is raised as an error of ``bowline.kube.errors``. Nothing is retried here except,
once, a request that the API server has rejected for credentials that have been rotated since. Callers have their own
backoff and know what is safe to retry. The calls that it sends are made in ``bowline.kube.object_client``.

The hot path carries two writes per bind at hundreds of binds per second. Hence headers are built once, URLs are not
parsed. HTTP/1.1 with keep-alive, for which Python has fast parsers; the number of connections bounds the concurrent
requests.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from bowline.kube.accounting import Connections, OpenCall, TimeAccount, current_account, open_calls
from bowline.kube.availability import Availability
from bowline.kube.calls import (
    Answer,
    Call,
    Request,
    TransportOptions,
    accept,
    query,
    require_permit,
    selectors,
)
from bowline.kube.config import ClusterAccess
from bowline.kube.denial import Denial
from bowline.kube.errors import (
    ConnectionFailed,
    Forbidden,
    InfrastructureError,
    Unreadable,
    from_response,
)
from bowline.kube.metrics import KubeMetrics
from bowline.kube.object_client import PAGE_SIZE, Body, ObjectClient, Page, Reduce
from bowline.kube.resources import LEASES, SELF_SUBJECT_REVIEWS, Selection
from bowline.kube.transport import HTTPTransport
from bowline.kube.unreadable import UnreadableObjects, parse_json, reduced_object
from bowline.kube.watching import Skip, read_events, skip_none
from bowline.kube.writes import Ledger, OwnWrites, WrittenObject
from bowline.runtime.clock import Clock, SystemClock

# The API server ends a watch after its timeoutSeconds; this much later the connection is considered dead.
_WATCH_MARGIN_S = 30


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Configuration of a client. ``name`` is user agent and field manager, such as bowline-reconciler."""

    name: str = "bowline"
    # Timeout of one request. Longer than an admission webhook may take (30 s), so that the API server can report its
    # failure; well below the budget of a plugin's call, so that a hanging request fails as a request.
    timeout_s: float = 35.0
    connect_timeout_s: float = 10.0  # of a new connection; also of the wait for a free one
    connections: int = 128
    watch_silence_s: float = 150.0  # bookmarks arrive once a minute; without any, the connection is considered dead
    metrics: KubeMetrics = field(default_factory=lambda: KubeMetrics(CollectorRegistry()))
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=Random)  # spreads load and names events; guards nothing
    transport: Callable[[ClusterAccess, TransportOptions], HTTPTransport] = HTTPTransport


class KubeClient(ObjectClient):
    """Access to one cluster: ``async with KubeClient(access) as client``."""

    def __init__(self, access: ClusterAccess, options: ClientOptions | None = None) -> None:
        self._options = options = options or ClientOptions()
        super().__init__(options.clock, options.random)
        self.unreadable = UnreadableObjects(options.metrics.count_unreadable)
        self.metrics = options.metrics
        self.ledger = Ledger(options.clock.monotonic)
        self.availability = Availability(options.clock, options.random.random)
        self.own_writes = OwnWrites()
        # The API server uses the part before the slash as the field manager.
        agent, limits = f"{options.name}/http1.1", (options.timeout_s, options.connect_timeout_s)
        self._transport = options.transport(access, TransportOptions(agent, *limits))
        # Requests queue here, where their time is accounted for.
        self._connections = Connections(options.connections, options.connect_timeout_s)

    @property
    def answers(self) -> int:
        """Number of responses received so far, of any status; each chunk of a watch counts."""
        return self._transport.answers

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""
        await self._transport.close()

    def pages(self, selection: Selection, page_size: int = PAGE_SIZE) -> AsyncGenerator[Page, None]:
        """Yield a list page by page: see ``_pages``."""
        return self._pages(selection, page_size)

    def watch(
        self,
        selection: Selection,
        resource_version: str,
        timeout_s: int,
        on_open: Callable[[], None] = lambda: None,
        skip: Skip = skip_none,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events after a resourceVersion, bookmarks included, until the API server ends the watch.

        An object that is not decoded is reduced to its metadata; one of a custom resource also ends the watch. An
        ERROR event is raised as the error that it carries, usually Expired; a broken watch as NoResponse. Unreadable:
        the watch cannot pass the next event. ``on_open`` is called when the API server has accepted the watch;
        ``skip`` returns an event that needs no decoding. Close it when done: ``contextlib.aclosing``.
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

        return read_events(stream, selection, resource_version, self.unreadable, on_open, skip)

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
        require_permit(call)
        with self.ledger.sending(call) as on_send:
            request = Request(
                call.method,
                path,
                accept(call.resource, call.verb),
                body=None if body is None else orjson.dumps(body),
                content_type=content_type if body is not None else "",
                # A Lease must not queue behind hanging writes.
                separate_pool=call.verb == "list" or call.resource in (LEASES, SELF_SUBJECT_REVIEWS),
                on_send=on_send,
                max_body=max_bytes,
            )
            answered = partial(self._answered, call, request, reduce)
            return await self.own_writes.observing(WrittenObject(call.resource, call.key), body, answered)()

    async def _answered(self, call: Call, request: Request, reduce: Reduce | None) -> tuple[dict[str, Any], int]:
        options, account, started_at = self._options, current_account(), self.clock.monotonic()
        code, is_lease = "lost", call.resource == LEASES
        calls, open_call = open_calls(), OpenCall(call, started_at)
        calls.append(open_call)
        try:
            answer = await self._exchange(request, account)
            code = str(answer.code)
        except InfrastructureError as error:
            code = "unreachable" if isinstance(error, ConnectionFailed) else code
            self.availability.observe(error, is_lease=is_lease)
            raise
        finally:
            calls.remove(open_call)
            options.metrics.observe(call.verb, call.label, code, self.clock.monotonic() - started_at)
        if not 200 <= answer.code < 300:
            failure = from_response(answer.code, answer.headers, answer.body, call.write)
            self.availability.observe(failure, is_lease=is_lease)
            policy = Denial.of(failure.message).own_policy if isinstance(failure, Forbidden) else ""
            if policy:
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

    async def _exchange(self, request: Request, account: TimeAccount) -> Answer:
        """Send one request on a free connection and read its reply."""
        if not request.separate_pool:
            await self._connections.acquire(account)
        account.enter_api()
        try:
            return await self._transport.send(request)
        finally:
            account.leave_api()
            if not request.separate_pool:
                self._connections.release()
