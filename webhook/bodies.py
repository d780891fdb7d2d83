"""Request bodies: read within bounds of size, time and memory, and reviewed in turns if they are large.

Bodies that are not reviewed yet weigh at most ``MAX_HELD`` bytes together. What exceeds it is taken from the peer
that holds the most: its oldest body is answered 429, which an API server repeats after a second. A small body that
comes with its head, as nearly all do, passes by all of this: it is reviewed in the same turn of the event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from shared.api.duration import parse_duration
from shared.runtime.fairness import FairPool, FairQueue

# etcd stores objects of up to 1.5 MB; an UPDATE carries two, and about as much again is escaped or described twice.
MAX_BODY: Final = 3_670_016
# All bodies that are not reviewed yet, together: eight of the largest, thousands of ordinary ones.
MAX_HELD: Final = 8 * MAX_BODY
# A review of a larger body waits for its turn, so that small ones come between.
LARGE: Final = 64 * 1024
# Kubernetes' own bounds of a webhook's timeout.
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = 30.0
_TIMEOUT: Final = "timeout="
# API servers write nothing else into the query.
_LONGEST_QUERY: Final = 64


class BadRequestError(Exception):
    """A request that is answered by an HTTP status and a sentence."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class Bodies:
    """The bodies that a listener holds."""

    def __init__(self, max_held: int = MAX_HELD) -> None:
        self._held: FairPool[_Body] = FairPool(max_held)
        self._turns: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_granting = False

    @asynccontextmanager
    async def of(self, request: web.BaseRequest, peer: str) -> AsyncIterator[bytes]:
        """Give a request's body when it is its turn. Raises BadRequestError for one that is not to be reviewed."""
        content = request.content
        if content.is_eof() and (request.content_length or 0) <= LARGE:
            yield content.read_nowait()
            return
        body = _Body(asyncio.timeout(timeout_s(request.raw_path)))
        try:
            async with body.deadline:
                await self._read(request, peer, body)
                if body.size > LARGE:
                    await self._turn(peer)
        except TimeoutError as error:
            if body.is_displaced:
                raise BadRequestError(429, "too many large bodies at a time; send it again in a second") from error
            raise BadRequestError(408, "the body did not come within the request's own timeout") from error
        except web.RequestPayloadError as error:
            raise BadRequestError(400, "the body cannot be read as its headers describe it") from error
        finally:
            self._held.drop(peer, body)
        yield b"".join(body.chunks)

    async def _read(self, request: web.BaseRequest, peer: str, body: "_Body") -> None:
        async for chunk in request.content.iter_any():
            body.size += len(chunk)
            if body.size > MAX_BODY:
                raise too_large()
            body.chunks.append(chunk)
            for one in self._held.put(peer, body, body.size):
                one.displace()

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
        """Grant one turn in a turn of the event loop, in which all small reviews that have come are made as well."""
        self._is_granting = False
        while self._turns:
            turn = self._turns.take()
            if not turn.done():  # its request may have timed out
                turn.set_result(None)
                break
        self._grant_soon()


class _Body:
    """A body that is not reviewed yet. ``deadline`` ends the wait for it."""

    __slots__ = ("chunks", "deadline", "is_displaced", "size")

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.deadline = deadline
        self.chunks: list[bytes] = []
        self.size = 0
        self.is_displaced = False

    def displace(self) -> None:
        """Give the memory up for others."""
        self.is_displaced = True
        self.chunks = []
        self.deadline.reschedule(asyncio.get_running_loop().time())


def too_large() -> BadRequestError:
    """Return the error of a body above the limit."""
    return BadRequestError(413, f"the body must not be larger than {MAX_BODY} bytes")


def timeout_s(target: str) -> float:
    """Return how long the caller waits at most, from the ``timeout`` that API servers put into the URL's query."""
    query = target.partition("?")[2]
    text = query[:_LONGEST_QUERY].partition(_TIMEOUT)[2].partition("&")[0]
    try:
        asked = parse_duration(text).total_seconds()
    except ValueError:
        return DEFAULT_TIMEOUT_S
    return min(asked, MAX_TIMEOUT_S) if asked > 0 else DEFAULT_TIMEOUT_S
