"""Requests to an API server and its responses, as data. No networking: it is imported where only types are needed."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from multidict import CIMultiDictProxy


class PatchType(StrEnum):
    """The format of a patch; the value is its content type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. ``is_cut``: the body was longer than the request permits, and is not here."""

    code: int
    headers: CIMultiDictProxy[str]
    body: bytes
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``separate_pool``: on connections of its own; ``is_fenced``: not sent while read-only.

    ``max_body``: bytes of a response that are read at most; longer ones are aborted. 0: of any length.
    """

    method: str
    path: str
    accept: str
    body: bytes | None = None
    content_type: str = ""
    separate_pool: bool = False
    is_fenced: bool = False
    max_body: int = 0


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """``timeout_s``: of a request with its reply; ``connect_timeout_s``: of a new connection, a part of it.

    ``may_write``: whether fenced requests may be sent now; asked for each when it has its connection.
    """

    user_agent: str
    timeout_s: float
    connect_timeout_s: float
    may_write: Callable[[], bool] = lambda: True


class Transport(Protocol):
    """Sends requests to one API server and returns its responses; connections are made on first use."""

    @property
    def answers(self) -> int:
        """Number of responses received so far, of any status; each chunk of a stream counts."""

    async def close(self) -> None:
        """Close all connections. Requests in flight fail."""

    async def send(self, request: Request) -> Answer:
        """Send one request and return the whole response. Raises ConnectionFailed or NoResponse."""

    def stream(self, path: str, *, accept: str, total_s: float, silence_s: float) -> AsyncGenerator[bytes, None]:
        """GET and yield the response's chunks; the first is empty and means that the response has begun.

        Raises the error for a response that is not 200, and NoResponse if it breaks off, lasts longer than
        ``total_s`` or is silent for ``silence_s``.
        """
