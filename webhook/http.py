"""What a request and an answer of HTTP/1.1 are here, and who is asked. Values, and how an answer looks on the wire.

``webhook.exchange`` makes the one of bytes and sends the other; ``webhook.server`` says what is answered.
"""

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

_REASONS: Final[Mapping[int, str]] = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}
_CLOSE: Final = "Connection: close\r\n"


class Head(NamedTuple):
    """A request without its body. Names of headers are in lower case, values of one name joined by commas."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def length(self) -> int:
        """How long the body says it is; 0 if it does not say."""
        # The parser has seen to it that these are digits of less than 2^64; there may be many zeros before them.
        return int(self.headers.get("content-length", "0")[-20:])


class Answer(NamedTuple):
    """What a request is answered. ``headers`` are whole lines, besides those that every answer has."""

    status: int
    content_type: str
    body: bytes
    headers: str = ""


class Handler(Protocol):
    """Who is asked. All is called in the midst of parsing, so nothing may wait.

    ``closing`` says whether each answer is to be its connection's last.
    """

    closing: bool
    max_body: int

    def begin(self, head: Head) -> Answer | None:
        """Refuse a request by its head alone; None lets it in, and one of the next three calls ends it."""

    def answer(self, head: Head, body: bytes) -> Answer:
        """Answer a request that was let in and is complete."""

    def cut_short(self, code: int, message: str) -> Answer:
        """Answer a request that was let in and will not be complete."""

    def forget(self) -> None:
        """A request that was let in has lost its caller."""

    def refuse(self, code: int, message: str) -> Answer:
        """Answer what never became a request."""

    def body_timeout_s(self, head: Head) -> float:
        """Return how long the body may take to come."""


def encode(answer: Answer, *, last: bool, bare: bool, now: int) -> bytes:
    """Return an answer as it is sent; a bare one, to HEAD, says how long its body would be."""
    head = (
        f"HTTP/1.1 {_REASONS[answer.status]}\r\nServer: bowline\r\nDate: {_date(now)}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"{answer.headers}{_CLOSE if last else ''}\r\n"
    ).encode("latin-1")
    return head if bare else head + answer.body


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
