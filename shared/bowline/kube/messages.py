"""Requests to an API server and its responses, as data. No networking: it is imported where only types are needed."""

from dataclasses import dataclass
from typing import Any

import orjson
from multidict import CIMultiDictProxy

from bowline.kube.errors import NoResponse


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    code: int
    headers: CIMultiDictProxy[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``separate_pool``: uses the separate session; ``is_fenced``: not sent while read-only."""

    method: str
    path: str
    accept: str
    body: bytes | None = None
    content_type: str = ""
    separate_pool: bool = False
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """``connections`` bounds the requests in flight per session; more wait, up to ``connect_timeout_s``."""

    user_agent: str
    timeout_s: float
    connect_timeout_s: float
    connections: int


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object in a response or in a line of it. Raises NoResponse if it is not a JSON object."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NoResponse("the answer is not JSON; is something between here and the API server?") from error
    if not isinstance(content, dict):
        raise NoResponse("the answer is no JSON object; is something between here and the API server?")
    return content
