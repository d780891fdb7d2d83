"""A loader for one HTTPS server: the same POST repeatedly over open connections, with its duration.

A separate process, so that it can have its own core: ``python -m tests.benchmarks.https_load`` takes a ``Target`` as
JSON on its standard input and prints a ``Measured``. Each connection sends its next request when the response to the
last is complete, as an API server's does over HTTP/1.1. A request costs it little: the bytes are encoded once and a
response is read no further than to its end. Anything but a 200 with a Content-Length ends the run: an error is no
figure.
"""

import asyncio
import json
import os
import ssl
import sys
import time
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.report import percentile

CONNECT_S = 30.0
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Target:
    """The server: a host whose certificate the CAs in ``ca`` verify. ``cpu`` is the loader's core."""

    port: int
    ca: str
    path: str
    body: str
    connections: int
    seconds: float
    cpu: int
    host: str = "127.0.0.1"
    server: int = 0  # the process whose CPU time is measured


@dataclass(frozen=True, slots=True)
class Measured:
    """The results. ``busy`` is the part of its core that the loader used: near 1 it measured itself."""

    answers: int
    seconds: float
    p50_ms: float
    p99_ms: float
    busy: float
    body: str  # of the first answer
    server_cpu_s: float = 0.0  # of the server's process, without the handshakes

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds

    @property
    def cpu_us(self) -> float:
        """The server's CPU time for each answer, in microseconds."""
        return 1e6 * self.server_cpu_s / self.answers


class Caller(asyncio.Protocol):
    """One connection: sends, waits for the complete response, records its duration, sends again."""

    def __init__(self, request: bytes) -> None:
        self.took: list[float] = []
        self.first = b""
        self.warm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._sent_at = 0.0
        self._last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports have the methods but not the base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Process a part of a response."""
        self._buffer += data
        head_end = self._buffer.find(_HEAD_END)
        if head_end < 0:
            return
        head = self._buffer[:head_end].lower()
        start = head.find(_LENGTH)
        if not head.startswith(b"http/1.1 200 ") or start < 0:
            self._fail(ConnectionError(f"answered {self._buffer[:200]!r}"))
            return
        length = int(head[start + len(_LENGTH) :].split(b"\r\n", 1)[0])
        if len(self._buffer) < head_end + len(_HEAD_END) + length:
            return
        body, self._buffer = self._buffer[head_end + len(_HEAD_END) :], b""
        if not self.warm.done():
            self.first = body
            self.warm.set_result(None)
            return
        self.took.append(time.perf_counter() - self._sent_at)
        if self._last:
            self._complete()
        else:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """A server that closes a connection during the measurement fails it."""
        self._fail(exc or ConnectionError("the server closed the connection"))

    def send(self) -> None:
        """Send the request."""
        if self._transport is not None:
            self._sent_at = time.perf_counter()
            self._transport.write(self._request)

    def stop_after_answer(self) -> None:
        """Send nothing more; ``ended`` is done after the pending response."""
        self._last = True

    def _complete(self) -> None:
        if not self.end.done():
            self.end.set_result(None)
        if self._transport is not None:
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        future = self.end if self.warm.done() else self.warm
        if not future.done():
            future.set_exception(error)
        if self._transport is not None:
            self._transport.close()


async def load(target: Target) -> Measured:
    """Call for that long. Raises ConnectionError or OSError for anything but successful responses."""
    loop = asyncio.get_running_loop()
    trust = ssl.create_default_context(cadata=target.ca)
    body = target.body.encode()
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    callers = []
    async with asyncio.timeout(CONNECT_S):
        for _ in range(target.connections):
            _, caller = await loop.create_connection(
                lambda: Caller(head.encode() + body), target.host, target.port, ssl=trust
            )
            callers.append(caller)
            # Not measured. A server may close connections that have sent nothing.
            caller.send()
            await caller.warm
    cpu, server, began = time.process_time(), _cpu_s(target.server), time.perf_counter()
    for caller in callers:
        caller.send()
    end = asyncio.gather(*(caller.end for caller in callers))
    ended_futures, _ = await asyncio.wait([end], timeout=target.seconds)
    for caller in callers:
        caller.stop_after_answer()
    await (ended_futures.pop() if ended_futures else end)
    seconds, server_cpu_s = time.perf_counter() - began, _cpu_s(target.server) - server
    took = [duration for caller in callers for duration in caller.took]
    return Measured(
        answers=len(took),
        seconds=seconds,
        p50_ms=1000 * percentile(took, 0.5),
        p99_ms=1000 * percentile(took, 0.99),
        busy=(time.process_time() - cpu) / seconds,
        body=callers[0].first.decode(),
        server_cpu_s=server_cpu_s,
    )


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds; 0 for no process."""
    return cpu_s({"": pid})[""] if pid else 0.0


def main() -> int:
    """Read the target, call it, print what was measured."""
    target = Target(**json.load(sys.stdin))
    os.sched_setaffinity(0, {target.cpu})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        measurement = runner.run(load(target))
    sys.stdout.write(json.dumps(asdict(measurement)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
