"""Request bodies: read within bounds of size, time and memory; large ones are reviewed one per event-loop turn.

All bodies awaiting review hold at most ``MAX_HELD`` bytes together. When they exceed it, the peer that holds the most
loses its oldest body, which is answered 429; an API server retries that after a second. A small body that arrives
together with its head, as nearly all do, bypasses this: it is reviewed in the same turn of the event loop. A limit of
requests in flight would count only callers that send slowly.
"""

import asyncio
from typing import Final

from aiohttp import web

from bowline.api.duration import parse_duration
from bowline.runtime.fairness import FairPool, FairQueue
from bowline.runtime.http_server import Connection

# etcd stores objects of up to 1.5 MB; an UPDATE carries two, and escaping and repetition add about as much again.
MAX_BODY: Final = 3_670_016
# All bodies awaiting review together: eight of the largest, thousands of ordinary ones.
MAX_HELD: Final = 8 * MAX_BODY
# The review of a larger body is queued, so that small ones can run in between.
LARGE: Final = 64 * 1024
# How long a body may take: so many seconds, and more by its bytes at the slowest permitted rate (16 s for 3.5 MiB).
# API servers send a body with its head.
BODY_S: Final = 2.0
BODY_RATE: Final = 256 * 1024
# Kubernetes' own bounds for a webhook's timeout.
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = 30.0
_TIMEOUT: Final = "timeout="
# API servers put nothing else into the query.
_LONGEST_QUERY: Final = 64


class BadRequestError(Exception):
    """A request that is answered with an HTTP status and a message."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class Bodies:
    """The bodies that a listener holds, with their memory bound and the queue for large ones."""

    def __init__(self, max_held: int = MAX_HELD) -> None:
        self._bodies: FairPool[_Body] = FairPool(max_held)
        self._turns: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_granting = False

    async def read(self, request: web.BaseRequest, connection: Connection) -> bytes:
        """Return the body of the connection's request once it may be reviewed.

        Raises BadRequestError: 400 for an unreadable body, 408 for one that is late, 413 above ``MAX_BODY``, 429 if
        the body was displaced.
        """
        content = request.content
        if content.is_eof() and (request.content_length or 0) <= LARGE:
            return content.read_nowait()
        peer, own_timeout_s = connection.peer, timeout_s(request.raw_path)
        body = _Body(asyncio.timeout(min(BODY_S, own_timeout_s)), asyncio.get_running_loop().time() + own_timeout_s)
        try:
            async with body.deadline:
                await self._read(request, peer, body)
                connection.record_complete_request()
                if body.size > LARGE:
                    body.deadline.reschedule(body.latest)
                    await self._turn(peer)
        except TimeoutError as error:
            if body.is_displaced:
                raise BadRequestError(429, "too many large bodies at a time; send it again in a second") from error
            raise BadRequestError(408, "the body was not received in time; send it with its head") from error
        except web.RequestPayloadError as error:
            raise BadRequestError(400, "the body cannot be read as its headers describe it") from error
        finally:
            self._bodies.drop(peer, body)
        return b"".join(body.chunks)

    async def _read(self, request: web.BaseRequest, peer: str, body: "_Body") -> None:
        async for chunk in request.content.iter_any():
            body.size += len(chunk)
            if body.size > MAX_BODY:
                raise too_large()
            body.chunks.append(chunk)
            body.extend(len(chunk) / BODY_RATE)
            for surplus in self._bodies.put(peer, body, body.size):
                surplus.displace()

    async def _turn(self, peer: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns.put(peer, turn)
        self._grant_soon()
        await turn

    def _grant_soon(self) -> None:
        if not self._is_granting and self._turns:
            self._is_granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        """Grant one large review per event-loop turn; the small reviews that are ready run in the same turn."""
        self._is_granting = False
        while self._turns:
            turn = self._turns.take()
            if not turn.done():  # its request may have timed out
                turn.set_result(None)
                break
        self._grant_soon()


class _Body:
    """A body awaiting review. ``deadline`` cancels the wait for it; ``latest``: its latest value, in loop time."""

    __slots__ = ("chunks", "deadline", "is_displaced", "latest", "size")

    def __init__(self, deadline: asyncio.Timeout, latest: float) -> None:
        self.deadline = deadline
        self.latest = latest
        self.chunks: list[bytes] = []
        self.size = 0
        self.is_displaced = False

    def extend(self, seconds: float) -> None:
        """Move the deadline, because a part has arrived. A displaced body's has expired and stays so."""
        when = self.deadline.when()
        if when is not None and not self.is_displaced:
            self.deadline.reschedule(min(when + seconds, self.latest))

    def displace(self) -> None:
        """Release the memory and expire the deadline: the request is then answered 429."""
        self.is_displaced = True
        self.chunks = []
        self.deadline.reschedule(asyncio.get_running_loop().time())


def too_large() -> BadRequestError:
    """Return the error for a body above ``MAX_BODY``."""
    return BadRequestError(413, f"the body must not be larger than {MAX_BODY} bytes")


def timeout_s(target: str) -> float:
    """Return the caller's timeout in seconds, from the ``timeout`` that API servers put into the URL's query.

    The default if it is absent, not a duration or not positive; at most ``MAX_TIMEOUT_S``.
    """
    query = target.partition("?")[2]
    text = query[:_LONGEST_QUERY].partition(_TIMEOUT)[2].partition("&")[0]
    try:
        requested_s = parse_duration(text).total_seconds()
    except ValueError:
        return DEFAULT_TIMEOUT_S
    return min(requested_s, MAX_TIMEOUT_S) if requested_s > 0 else DEFAULT_TIMEOUT_S
