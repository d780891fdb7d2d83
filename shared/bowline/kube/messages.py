"""Requests to an API server and its responses, as data. No networking: it is imported where only types are needed."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

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
