"""HTTP sessions to one API server, by aiohttp.

Exceptions of aiohttp, of sockets and of TLS become ``ConnectionFailed`` or ``NoResponse`` here; the distinction
decides whether a write may have been applied. Any reply of the API server, whatever its code, is an ``Answer``.
Decision 120.
"""

import asyncio
import logging
import math
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection
from multidict import CIMultiDict
from yarl import URL

from bowline.kube.config import ClusterAccess
from bowline.kube.errors import (
    ConnectionFailed,
    CredentialsError,
    InfrastructureError,
    NoResponse,
    UntrustedServer,
    from_response,
)
from bowline.kube.messages import Answer, Request, TransportOptions

log = logging.getLogger(__name__)

# The API server closes an idle connection after 90 s; the client closes it earlier, or a write could meet the close.
_KEEPALIVE_S = 60
# A peer that vanished without closing is detected after about 15 + 3 * 5 s.
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 15, 5, 3
_READ_BUFFER = 2**18
# For connections to close; only a hanging peer needs more.
_GOODBYE_S = 1.0
# Rejected credentials are read again at most this often, however many requests get 401.
_REREAD_EVERY_S = 5.0


def _unlimited() -> float:
    return math.inf


# Raises if the request of this context must not be sent.
_FENCE: ContextVar[Callable[[], None]] = ContextVar("fence")


class _FencedRequest(aiohttp.ClientRequest):
    """Checks the fence when the connection is there, directly before the first byte.

    A process may be stopped at any time, and continue when another one leads: then a handshake or the wait for a
    connection ends before any timer does.
    """

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        _FENCE.get()()
        return await super().send(conn)


class HTTPTransport:
    """Sends requests and returns responses; ``open`` first.

    Long responses (lists, watches) and urgent requests use a separate session. Each connection keeps a buffer as long
    as the longest response it has read, up to 256 KB: lists distributed over the connections of the writes would
    leave 20 MB behind.
    """

    def __init__(self, access: ClusterAccess, options: TransportOptions) -> None:
        self._access = access
        self._options = options
        self._timeout = aiohttp.ClientTimeout(
            total=options.timeout_s, connect=options.connect_timeout_s, sock_connect=options.connect_timeout_s
        )
        self._writable_s: Callable[[], float] = _unlimited
        self.answers = 0
        self._session: aiohttp.ClientSession | None = None
        self._apart: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._headers: dict[tuple[str, str], CIMultiDict[str]] = {}
        self._renewal = asyncio.Lock()
        self._renewed_at = float("-inf")

    async def open(self) -> None:
        """Create the sessions; they connect on first use."""
        self._session, self._apart = self._new_session(), self._new_session()

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._options.connections,
            keepalive_timeout=_KEEPALIVE_S,
            socket_factory=self._new_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER,
            timeout=self._timeout,
            middlewares=(_no_automatic_retry,),
            request_class=_FencedRequest,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is None or self._apart is None:
            return
        await self._session.close()
        await self._apart.close()
        self._session = self._apart = None
        # TLS shutdown runs in the background; an event loop that ends before it leaks the sockets.
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while any(new_socket.fileno() >= 0 for new_socket in self._sockets):  # noqa: ASYNC110 - aiohttp has no event
                    await asyncio.sleep(0.005)

    async def send(self, request: Request) -> Answer:
        """Send one request and read the whole response. Raises ConnectionFailed or NoResponse."""
        if self._access.credentials.due:
            await self._renew()
        used = self._access.credentials.headers
        try:
            answer = await self._exchange(request)
        except UntrustedServer:
            # Nothing was sent: the handshake has failed.
            if not await self._reload_authorities():
                raise
            answer = await self._exchange(request)
        if answer.code == 401 and await self._renew(rejected_headers=used):
            answer = await self._exchange(request)
        return answer

    async def stream(
        self, path: str, *, accept: str, total_s: float, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """GET and yield the response's chunks; the first is empty and means that the response has begun.

        Raises the error for a response that is not 200, and NoResponse if it breaks off, lasts longer than
        ``total_s`` or is silent for ``silence_s``. Close it when done: ``contextlib.aclosing``.
        """
        if self._access.credentials.due:
            await self._renew()
        used = self._access.credentials.headers
        timeout = aiohttp.ClientTimeout(
            total=total_s, sock_connect=self._options.connect_timeout_s, sock_read=silence_s
        )
        try:
            async with await self._send(
                Request("GET", path, accept, separate_pool=True), timeout=timeout
            ) as response:
                if response.status != 200:
                    if response.status == 401:
                        await self._renew(rejected_headers=used)
                    raise from_response(response.status, response.headers, await response.read())
                yield b""
                async for chunk in response.content.iter_any():
                    self.answers += 1
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = map_error(error)
            if isinstance(failure, UntrustedServer):
                # For the next watch: the caller opens it after its backoff.
                await self._reload_authorities()
            raise failure from error

    async def _exchange(self, request: Request) -> Answer:
        try:
            async with await self._send(request) as response:
                if not request.max_body:
                    return Answer(response.status, response.headers, await response.read())
                parts: list[bytes] = []
                left = request.max_body
                async for part in response.content.iter_any():
                    left -= len(part)
                    if left < 0:
                        # Not read to its end: the connection cannot be used again.
                        response.close()
                        return Answer(response.status, response.headers, b"", is_cut=True)
                    parts.append(part)
                return Answer(response.status, response.headers, b"".join(parts))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise map_error(error) from error

    @property
    def read_only(self) -> bool:
        """Whether no fenced request is sent now."""
        return self._writable_s() <= 0

    def permit_writes(self, left_s: Callable[[], float]) -> None:
        """Send fenced requests as long as ``left_s``, which is called for each, returns a positive number."""
        self._writable_s = left_s

    def check_fence(self, request: Request) -> None:
        """Raise ConnectionFailed if the request must not be sent now."""
        if request.is_fenced and self.read_only:
            raise ConnectionFailed("not sent: this process no longer leads")

    async def _send(self, request: Request, **options: Any) -> aiohttp.ClientResponse:
        session = self._apart if request.separate_pool else self._session
        if session is None:
            raise RuntimeError("the client is not open: use `async with KubeClient(...)`")
        self.check_fence(request)
        accept, content_type = request.accept, request.content_type
        headers = self._headers.get((accept, content_type)) or self._build_headers(accept, content_type)
        token = _FENCE.set(partial(self.check_fence, request))
        try:
            response = await self._request(session, request, headers, **options)
        finally:
            _FENCE.reset(token)
        self.answers += 1
        return response

    async def _request(
        self, session: aiohttp.ClientSession, request: Request, headers: CIMultiDict[str], **options: Any
    ) -> aiohttp.ClientResponse:
        return await session.request(
            request.method,
            # Already quoted, part by part: parsing and quoting again would cost as much as the rest.
            URL(self._access.server + request.path, encoded=True),
            data=request.body,
            headers=headers,
            # The current context, not the session's: the cluster's CA may have been rotated.
            ssl=self._access.trust.context if self._access.trust is not None else True,
            allow_redirects=False,
            **options,
        )

    def _build_headers(self, accept: str, content_type: str) -> CIMultiDict[str]:
        headers = CIMultiDict(self._access.credentials.headers)
        headers["Accept"] = accept
        headers["User-Agent"] = self._options.user_agent
        # Compressing a list costs the API server more than sending it across a cluster's network.
        headers["Accept-Encoding"] = "identity"
        if content_type:
            headers["Content-Type"] = content_type
        self._headers[accept, content_type] = headers
        return headers

    async def _reload_authorities(self) -> bool:
        """Read the CAs again; return whether the next connection is verified with different ones."""
        trust = self._access.trust
        if trust is None:
            return False
        used = trust.context
        async with self._renewal:
            try:
                has_changed = trust.load()
            except CredentialsError as error:
                log.warning("certificate authorities cannot be reloaded", extra={"error": str(error)})
                return False
            if has_changed:
                log.info("the certificate authorities of the API server have changed")
            return trust.context is not used

    async def _renew(self, *, rejected_headers: Mapping[str, str] | None = None) -> bool:
        """Reload rotated credentials and CAs; return whether the headers differ from those just used.

        ``rejected_headers``: those that the API server has answered with 401.
        """
        credentials = self._access.credentials
        used = rejected_headers if rejected_headers is not None else credentials.headers
        if rejected_headers is None:
            await self._reload_authorities()
        async with self._renewal:
            if credentials.headers is not used:
                # Renewed by the previous holder of the lock, or with the CAs.
                self._headers.clear()
                return True
            now = asyncio.get_running_loop().time()
            if rejected_headers is not None and now < self._renewed_at + _REREAD_EVERY_S:
                return False
            self._renewed_at = now if rejected_headers is not None else self._renewed_at
            try:
                has_changed = await credentials.refresh(is_rejected=rejected_headers is not None)
            except CredentialsError as error:
                # The present ones may still be valid; if not, the API server answers 401.
                log.warning("credentials cannot be reloaded", extra={"error": str(error)})
                return False
            if has_changed:
                self._headers.clear()
            return has_changed

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        new_socket = socket.socket(family, kind, protocol)
        self._sockets.add(new_socket)
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Linux only; elsewhere the system's own, longer defaults apply.
        for option, value in (
            ("TCP_KEEPIDLE", _PROBE_AFTER_S),
            ("TCP_KEEPINTVL", _PROBE_EVERY_S),
            ("TCP_KEEPCNT", _PROBES),
            ("TCP_USER_TIMEOUT", 1000 * (_PROBE_AFTER_S + _PROBES * _PROBE_EVERY_S)),
        ):
            if hasattr(socket, option):
                new_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return new_socket


async def _no_automatic_retry(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Middleware that prevents the session from retrying a GET, PUT or DELETE when its connection breaks.

    The caller would see one request where two were sent, and attribute a Conflict caused by the first to another
    writer. aiohttp selects the errors that it retries by class.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error) or type(error).__name__) from error


def map_error(error: Exception) -> InfrastructureError:
    """Return the error for a failed exchange. Unless the request is known not to have been sent, it counts as
    sent.
    """
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return UntrustedServer(f"no connection to the API server: {text}")
    if isinstance(
        error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
    ):
        return ConnectionFailed(f"no connection to the API server: {text}")
    if isinstance(error, TimeoutError):
        return NoResponse("the API server did not answer in time")
    return NoResponse(f"the connection to the API server broke: {text}")
