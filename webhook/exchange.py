"""HTTP/1.1 as one connection sees it: bytes of requests in, bytes of answers out. Does no I/O and has no deadlines.

    bytes ─► Exchange (llhttp parses) ─► Head ─► Handler.begin ─► body ─► Handler.answer ─► Answer ─► bytes

A request is answered at once when its last byte is here, within the call that brought it: judging a review waits for
nothing, and a task or a future for each would cost a third of it. Requests that came together are answered in their
order. What is no HTTP, or leaves open where the next request begins, is answered 4xx and ends the exchange.

Knows nothing of what is asked, of sockets and of time: ``webhook.connections`` looks at ``phase`` and counts.
"""

import logging
import time
from enum import Enum
from typing import Final, NoReturn

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from webhook.http import Answer, Handler, Head, encode

log = logging.getLogger(__name__)

# What other servers take: of one line, and of a whole head.
MAX_LINE: Final = 8 * 1024
MAX_HEAD: Final = 32 * 1024
_UNREADABLE: Final = "the body cannot be read as its headers describe it"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Phase(Enum):
    """What an exchange waits for."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    REST = "the end of a body whose request is answered"
    # Closing at once could reset the connection under bytes that are on their way, and the answer would be lost.
    DEAF = "the caller to see the last answer; what still comes is not looked at"
    OVER = "nothing; the connection is to be closed"


_ENDED: Final = (Phase.DEAF, Phase.OVER)


class _StopParsingError(Exception):
    """Ends the parser's run over what came; only raised where the parser calls."""


class Exchange:
    """One connection's requests and answers, in turn. ``head`` is that of the request whose body is awaited."""

    def __init__(self, handler: Handler) -> None:
        self.phase = Phase.IDLE
        self.head: Head | None = None
        self._handler = handler
        self._parser = HttpRequestParser(self)
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_size = 0
        # A body of one part is kept as it came; more are put together at once, for there may be millions.
        self._body: bytes | bytearray = b""
        # Bytes that came since anything of use did: unfinished lines, extensions of chunks, trailers.
        self._useless = 0
        self._is_last = False
        self._is_bare = False
        self._out: list[bytes] = []

    @property
    def held(self) -> int:
        """How much of a body is kept that is not complete."""
        return len(self._body)

    # --- called by the connection ---

    def receive(self, data: bytes) -> bytes:
        """Take what came; returns what is to be sent."""
        if self.phase in _ENDED:
            return b""
        self._useless += len(data)
        try:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as pause:
                self._go_on_without_upgrade(data[pause.args[0] :])
            if self._useless > MAX_HEAD:
                self._turn_away(
                    431, f"a head, or what stands between parts of a body, is larger than {MAX_HEAD} bytes"
                )
        except (HttpParserError, _StopParsingError) as error:
            if self.phase not in _ENDED:
                self._end(400, _UNREADABLE if self.phase is Phase.BODY else f"this is no HTTP/1.1 request: {error}")
        return self._flushed()

    def expire(self) -> bytes:
        """Give up waiting for the rest of a request; returns what is to be sent."""
        what = "the body did not come within the request's own timeout"
        self._end(408, what if self.phase is Phase.BODY else "the head did not come in time")
        return self._flushed()

    def crowd_out(self) -> bytes:
        """Give the request at hand up for others; returns what is to be sent."""
        self._end(429, "too many large bodies at a time; send it again in a second")
        return self._flushed()

    def hang_up(self) -> bytes:
        """Take note that nothing more will come; returns what is to be sent to a caller who may still listen."""
        if self.phase is Phase.HEAD or self.phase is Phase.BODY:
            self._end(400, _UNREADABLE if self.phase is Phase.BODY else "the request ends within its head")
        self.phase = Phase.OVER
        return self._flushed()

    def lose(self) -> None:
        """Take note that nobody listens any more."""
        if self.phase is Phase.BODY:
            self._drop_body()
            self._handler.forget()
        self.phase = Phase.OVER
        # Parser and exchange hold each other; one of them has to let go.
        del self._parser

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.phase = Phase.HEAD
        self._target, self._headers, self._head_size, self._useless = b"", {}, 0, 0
        self._is_bare = False

    def on_url(self, part: bytes) -> None:
        """Take the target, or a part of it."""
        self._target += part
        if len(self._target) > MAX_LINE:
            self._turn_away(431, f"a line of the head must not be larger than {MAX_LINE} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a line of the head; those behind a body say nothing that is of use."""
        if self.phase is not Phase.HEAD:
            return
        size = len(name) + len(value)
        self._head_size += size
        if size > MAX_LINE or self._head_size > MAX_HEAD:
            self._turn_away(431, f"a head must not be larger than {MAX_HEAD} bytes, a line of it than {MAX_LINE}")
        word, text = name.decode("latin-1").lower(), value.strip().decode("latin-1")
        before = self._headers.get(word)
        self._headers[word] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        """Ask whether the request is let in."""
        parser, headers = self._parser, self._headers
        head = Head(parser.get_method().decode("ascii"), self._target.decode("latin-1"), headers)
        self._useless = 0
        self._is_last, self._is_bare = not parser.should_keep_alive(), head.method == "HEAD"
        if "connection" in headers and parser.get_http_version() == "1.0":
            self._is_last = True  # to be kept, it would have to be promised in the old way
        if parser.should_upgrade():
            self._is_last = True
            if head.method != "CONNECT":
                return  # what follows is in receive: the parser stops here
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            self._turn_away(400, "the only transfer encoding is chunked")
        refusal = self._begun(head)
        if refusal is not None:
            # Whoever waits to be told to send the body may send the next request instead: nobody could tell.
            self._is_last = self._is_last or "expect" in headers
            self._give(refusal)
            self.phase = Phase.REST
            return
        self.head, self.phase = head, Phase.BODY
        if headers.get("expect", "").lower() == "100-continue" and parser.get_http_version() != "1.0":
            self._out.append(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self._useless = 0
        if self.phase is Phase.BODY:
            if len(self._body) + len(part) > self._handler.max_body:
                # The rest is read on, like that of a request that said at once how large it is.
                self._give(self._cut_short(413, f"the body must not be larger than {self._handler.max_body} bytes"))
                self.phase = Phase.REST
            elif not self._body:
                self._body = part
            else:
                if isinstance(self._body, bytes):
                    self._body = bytearray(self._body)
                self._body += part

    def on_message_complete(self) -> None:
        """Answer."""
        if self.phase is Phase.HEAD:
            return  # a wish for another protocol, see on_headers_complete
        if self.phase is Phase.BODY and self.head is not None:
            head, body = self.head, bytes(self._body)
            self._drop_body()
            self._give(self._answered(head, body))
        self.phase = Phase.OVER if self._is_last else Phase.IDLE
        if self._is_last:
            raise _StopParsingError

    # --- in between ---

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Read the request again without its wish for another protocol, which nobody has to grant.

        The parser takes a body behind such a head for the other protocol's.
        """
        if self.phase is not Phase.HEAD:
            return  # it is answered: there is nothing to connect to
        kept = {name: value for name, value in self._headers.items() if name not in ("upgrade", "connection")}
        lines = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
        method = self._parser.get_method().decode("ascii")
        target = self._target.decode("latin-1")
        self._parser = HttpRequestParser(self)
        again = f"{method} {target} HTTP/1.1\r\n{lines}connection: close\r\n\r\n"
        self._parser.feed_data(again.encode("latin-1") + rest)

    def _begun(self, head: Head) -> Answer | None:
        try:
            return self._handler.begin(head)
        except Exception:
            log.exception("answering failed")
            return self._failed()

    def _answered(self, head: Head, body: bytes) -> Answer:
        try:
            return self._handler.answer(head, body)
        except Exception:
            log.exception("answering failed")
            return self._failed()

    def _failed(self) -> Answer:
        self._is_last = True
        return Answer(500, "text/plain", b"the listener has failed; its log says more\n")

    def _turn_away(self, code: int, message: str) -> NoReturn:
        self._end(code, message)
        raise _StopParsingError

    def _end(self, code: int, message: str) -> None:
        """Give the last answer, unless the request at hand has one."""
        self._is_last = True
        if self.phase is Phase.BODY:
            self._give(self._cut_short(code, message))
        elif self.phase is not Phase.REST:
            self._give(self._handler.refuse(code, message))
        self.phase = Phase.DEAF

    def _cut_short(self, code: int, message: str) -> Answer:
        self._drop_body()
        return self._handler.cut_short(code, message)

    def _drop_body(self) -> None:
        self.head, self._body = None, b""

    def _give(self, answer: Answer) -> None:
        self._is_last = self._is_last or self._handler.closing
        self._out.append(encode(answer, last=self._is_last, bare=self._is_bare, now=int(time.time())))

    def _flushed(self) -> bytes:
        out = self._out
        if not out:
            return b""
        self._out = []
        return out[0] if len(out) == 1 else b"".join(out)
