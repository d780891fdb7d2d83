"""A handler for tests of HTTP by itself: it takes POST /echo, and remembers what it was told."""

import re

from webhook.http import Answer, Head

MAX_BODY = 1000


class Echo:
    """Answers a body with itself. ``begun`` counts requests that were let in and are not ended."""

    def __init__(self) -> None:
        self.closing = False
        self.max_body = MAX_BODY
        self.begun = 0
        self.seen: list[Head] = []

    def begin(self, head: Head) -> Answer | None:
        self.seen.append(head)
        if head.target == "/crash-at-once":
            raise ZeroDivisionError
        if head.target not in ("/echo", "/crash"):
            return self.refuse(404, "not here")
        self.begun += 1
        return None

    def answer(self, head: Head, body: bytes) -> Answer:
        self.begun -= 1
        if head.target == "/crash":
            raise ZeroDivisionError
        return Answer(200, "text/plain", body)

    def cut_short(self, code: int, message: str) -> Answer:
        self.begun -= 1
        return self.refuse(code, message)

    def forget(self) -> None:
        self.begun -= 1

    def refuse(self, code: int, message: str) -> Answer:
        return Answer(code, "text/plain", message.encode())

    def body_timeout_s(self, head: Head) -> float:
        return 5.0


def post(body: bytes = b"hello", *lines: str, target: str = "/echo", version: str = "1.1") -> bytes:
    """Return a request with a Content-Length."""
    return with_head(*lines, f"Content-Length: {len(body)}", target=target, version=version) + body


def with_head(*lines: str, method: str = "POST", target: str = "/echo", version: str = "1.1") -> bytes:
    """Return a head with these lines."""
    return "\r\n".join([f"{method} {target} HTTP/{version}", "Host: x", *lines, "", ""]).encode()


def chunked(*parts: bytes) -> bytes:
    """Return a request whose body comes in these chunks."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return with_head("Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"


def answers(out: bytes) -> list[tuple[int, bytes, bool]]:
    """Return status, body and whether it is the last, of each answer. Fails if they are no HTTP."""
    found = []
    while out:
        head, _, out = out.partition(b"\r\n\r\n")
        status = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [ \w-]+", head.split(b"\r\n")[0])
        assert status is not None, head
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        size = int(length[1]) if length else 0
        assert len(out) >= size
        found.append((int(status[1]), out[:size], b"\r\nConnection: close" in head))
        out = out[size:]
    return found
