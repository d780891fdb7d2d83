"""HTTP to one API server: credentials, the fence of writes, and the errors of an exchange.

Exceptions of connections, of TLS and of HTTP become ``ConnectionFailed`` or ``NoResponse`` here; the distinction
decides whether a write may have been applied. Any reply of the API server, whatever its code, is an ``Answer``.
Decision 120.
"""

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from urllib.parse import urlsplit

from aiohttp.client_exceptions import ClientError
from aiohttp.http_exceptions import HttpProcessingError

from bowline.kube.config import ClusterAccess
from bowline.kube.connections import Connection, ConnectionPool
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

# Rejected credentials are read again at most this often, however many requests get 401.
_REREAD_EVERY_S = 5.0
# A line of a request must not end early.
_TARGET = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[ -~]*")
_FAILURES = (ClientError, HttpProcessingError, OSError)  # TimeoutError is an OSError


def _unlimited() -> float:
    return math.inf


class HTTPTransport:
    """Sends requests and returns responses; ``open`` first.

    Long responses (lists, watches) and urgent requests use connections of their own. Each connection keeps a buffer
    as long as the longest response it has read, up to 256 KB: lists distributed over the connections of the writes
    would leave 20 MB behind.
    """

    def __init__(self, access: ClusterAccess, options: TransportOptions) -> None:
        self._access = access
        self._options = options
        self._writable_s: Callable[[], float] = _unlimited
        self.answers = 0
        self._pool: ConnectionPool | None = None
        self._apart: ConnectionPool | None = None
        self._base_path = urlsplit(access.server).path
        self._headers: dict[tuple[str, str], bytes] = {}
        self._renewal = asyncio.Lock()
        self._renewed_at = float("-inf")

    async def open(self) -> None:
        """Make the pools; they connect on first use."""
        server, timeout_s = self._access.server, self._options.connect_timeout_s
        self._pool, self._apart = ConnectionPool(server, timeout_s), ConnectionPool(server, timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        for pool in (self._pool, self._apart):
            if pool is not None:
                await pool.close()
        self._pool = self._apart = None

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
        request = Request("GET", path, accept, separate_pool=True)
        deadline = asyncio.get_running_loop().time() + total_s
        try:
            pool, connection = await self._connection(request)
        except UntrustedServer:
            # For the next watch: the caller opens it after its backoff.
            await self._reload_authorities()
            raise
        try:
            head, body = await connection.reply_to(self._encode(request), deadline, silence_s)
            self.answers += 1
            if head.code != 200:
                if head.code == 401:
                    await self._renew(rejected_headers=used)
                raise from_response(head.code, head.headers, await body.read())
            yield b""
            while chunk := await body.readany():
                self.answers += 1
                yield chunk
        except _FAILURES as error:
            raise map_error(error) from error
        finally:
            pool.release(connection)

    async def _exchange(self, request: Request) -> Answer:
        deadline = asyncio.get_running_loop().time() + self._options.timeout_s
        pool, connection = await self._connection(request)
        try:
            head, body = await connection.reply_to(self._encode(request), deadline)
            self.answers += 1
            if not request.max_body:
                return Answer(head.code, head.headers, await body.read())
            parts: list[bytes] = []
            left = request.max_body
            while part := await body.readany():
                left -= len(part)
                if left < 0:
                    # Not read to its end: the connection is closed.
                    return Answer(head.code, head.headers, b"", is_cut=True)
                parts.append(part)
            return Answer(head.code, head.headers, b"".join(parts))
        except _FAILURES as error:
            raise map_error(error) from error
        finally:
            pool.release(connection)

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

    async def _connection(self, request: Request) -> tuple[ConnectionPool, Connection]:
        """Return a connection on which the request may be sent now, with its pool.

        The fence is checked twice. A process may be stopped at any time, and continue when another one leads: then a
        handshake ends before any timer does.
        """
        pool = self._apart if request.separate_pool else self._pool
        if pool is None:
            raise RuntimeError("the client is not open: use `async with KubeClient(...)`")
        self.check_fence(request)
        connection = await pool.connection(self._access.trust.context if self._access.trust is not None else None)
        try:
            self.check_fence(request)
        except ConnectionFailed:
            pool.release(connection)
            raise
        return pool, connection

    def _encode(self, request: Request) -> bytes:
        target = self._base_path + request.path
        if not _TARGET.fullmatch(target):
            raise ValueError(f"not a path of a URL: {target!r}")
        accept, content_type = request.accept, request.content_type
        headers = self._headers.get((accept, content_type)) or self._build_headers(accept, content_type)
        start = f"{request.method} {target} HTTP/1.1\r\n".encode()
        if request.body is None:
            return b"".join((start, headers, b"\r\n"))
        return b"".join((start, headers, b"Content-Length: %d\r\n\r\n" % len(request.body), request.body))

    def _build_headers(self, accept: str, content_type: str) -> bytes:
        headers = {
            "Host": urlsplit(self._access.server).netloc.rpartition("@")[2],
            **self._access.credentials.headers,
            "Accept": accept,
            "User-Agent": self._options.user_agent,
            # Compressing a list costs the API server more than sending it across a cluster's network.
            "Accept-Encoding": "identity",
            **({"Content-Type": content_type} if content_type else {}),
        }
        invalid = [name for name, value in headers.items() if not _VALUE.fullmatch(value)]
        if invalid:
            raise ValueError(f"a line break or an unprintable character in {', '.join(invalid)}")
        block = self._headers[accept, content_type] = "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        ).encode()
        return block

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


def map_error(error: Exception) -> InfrastructureError:
    """Return the error for a failed exchange: the request counts as sent."""
    if isinstance(error, TimeoutError):
        return NoResponse("the API server did not answer in time")
    return NoResponse(f"the connection to the API server broke: {str(error) or type(error).__name__}")
