"""HTTP to one API server: credentials, and the errors of an exchange.

Exceptions of connections, of TLS and of HTTP become ``ConnectionFailed`` or ``NoResponse`` here; the distinction
decides whether a write may have been applied. Any reply of the API server, whatever its code, is an ``Answer``.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import urlsplit

from aiohttp.client_exceptions import ClientError
from aiohttp.http_exceptions import HttpProcessingError

from bowline.kube.calls import Answer, Request, TransportOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.connections import Connection, ConnectionPool
from bowline.kube.errors import (
    CredentialsError,
    InfrastructureError,
    NoResponse,
    UntrustedServer,
    from_response,
)

log = logging.getLogger(__name__)

# A line of a request must not end early; tokens are checked when they are read.
_TARGET = re.compile(r"[!-~]+")
_FAILURES = (ClientError, HttpProcessingError, OSError)  # TimeoutError is an OSError


class HTTPTransport:
    """Sends requests and returns responses; connects on first use.

    Long responses (lists, watches) and urgent requests use connections of their own. Each connection keeps a buffer
    as long as the longest response it has read, up to 256 KB: lists distributed over the connections of the writes
    would leave 20 MB behind.
    """

    def __init__(self, access: ClusterAccess, options: TransportOptions) -> None:
        self._access = access
        self._options = options
        self.answers = 0  # responses received so far, of any status; each chunk of a stream counts
        self._pool, self._apart = (ConnectionPool(access.server, options.connect_timeout_s) for _ in range(2))
        self._base_path = urlsplit(access.server).path
        self._headers: dict[tuple[str, str], bytes] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
        await self._apart.close()

    async def send(self, request: Request) -> Answer:
        """Send one request and read the whole response. Raises ConnectionFailed or NoResponse."""
        if self._access.due:
            self._renew()
        used = self._access.headers
        try:
            answer = await self._exchange(request)
        except UntrustedServer:
            # Nothing was sent: the handshake has failed.
            if not self._reload_authorities():
                raise
            answer = await self._exchange(request)
        if answer.code == 401 and self._renew(used):
            answer = await self._exchange(request)
        return answer

    async def stream(
        self, path: str, *, accept: str, total_s: float, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """GET and yield the response's chunks; the first is empty and means that the response has begun.

        Raises the error for a response that is not 200, and NoResponse if it breaks off, lasts longer than
        ``total_s`` or is silent for ``silence_s``. Close it when done: ``contextlib.aclosing``.
        """
        if self._access.due:
            self._renew()
        used = self._access.headers
        request = Request("GET", path, accept, separate_pool=True)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + total_s
        try:
            pool, connection = await self._connection(request)
        except UntrustedServer:
            # For the next watch: the caller opens it after its backoff.
            self._reload_authorities()
            raise
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + silence_s)):
                head, body = await connection.reply_to(self._encode(request))
                if head.code != 200:
                    self.answers += 1
                    if head.code == 401:
                        self._renew(used)
                    raise from_response(head.code, head.headers, await body.read())
            chunk: bytes | None = b""
            while chunk is not None:
                self.answers += 1
                yield chunk
                async with asyncio.timeout_at(min(deadline, loop.time() + silence_s)):
                    chunk = await body.readany() or None
        except _FAILURES as error:
            raise map_error(error) from error
        finally:
            pool.release(connection)

    async def _exchange(self, request: Request) -> Answer:
        deadline = asyncio.get_running_loop().time() + self._options.timeout_s
        pool, connection = await self._connection(request)
        try:
            if request.on_send is not None:
                request.on_send()
            async with asyncio.timeout_at(deadline):
                head, body = await connection.reply_to(self._encode(request))
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

    async def _connection(self, request: Request) -> tuple[ConnectionPool, Connection]:
        """Return a connection for the request, with its pool."""
        pool = self._apart if request.separate_pool else self._pool
        return pool, await pool.connection(self._access.context)

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
            **self._access.headers,
            "Accept": accept,
            "User-Agent": self._options.user_agent,
            # Compressing a list costs the API server more than sending it across a cluster's network.
            "Accept-Encoding": "identity",
            **({"Content-Type": content_type} if content_type else {}),
        }
        block = self._headers[accept, content_type] = "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        ).encode()
        return block

    def _reload_authorities(self) -> bool:
        """Read the CAs again; return whether the next connection is verified with different ones."""
        try:
            has_changed = self._access.read_authorities()
        except CredentialsError as error:
            log.warning("certificate authorities cannot be reloaded", extra={"error": str(error)})
            return False
        if has_changed:
            log.info("the certificate authorities of the API server have changed")
        return has_changed

    def _renew(self, rejected_headers: Mapping[str, str] | None = None) -> bool:
        """Read rotated credentials again, and without a rejection also the CAs; return whether the headers differ.

        ``rejected_headers``: those that the API server has answered with 401; another request may have renewed them.
        """
        used = self._access.headers if rejected_headers is None else rejected_headers
        if rejected_headers is None:
            self._reload_authorities()
        try:
            if self._access.headers is used:
                self._access.read_token()
        except CredentialsError as error:
            # The present ones may still be valid; if not, the API server answers 401.
            log.warning("credentials cannot be reloaded", extra={"error": str(error)})
        if self._access.headers is used:
            return False
        self._headers.clear()
        return True


def map_error(error: Exception) -> InfrastructureError:
    """Return the error for a failed exchange: the request counts as sent."""
    if isinstance(error, TimeoutError):
        return NoResponse("the API server did not answer in time")
    return NoResponse(f"the connection to the API server broke: {str(error) or type(error).__name__}")
