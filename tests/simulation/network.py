"""The network between a process and the API server, in place of the client's HTTP transport.

This is the seam: everything above it is the product's own client. Each request has a passage, drawn from the seed and
the request's number: how long it takes in both directions, and what goes wrong. A request that was sent is executed
by the world: its process may die or pause meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any, cast

import orjson
from multidict import CIMultiDict, CIMultiDictProxy

from bowline.kube.calls import Answer, Request, TransportOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import ConnectionFailed, NoResponse, from_response
from bowline.kube.transport import HTTPTransport
from tests.simulation.dice import Dice
from tests.simulation.loop import Process, State, VirtualLoop
from tests.simulation.objects import resource_of
from tests.simulation.server import Answer as ServerAnswer
from tests.simulation.server import Change, Server, Watcher

# The API server executes no request that was sent longer ago: its --request-timeout.
REQUEST_TIMEOUT_S = 60.0
CLIENT_TIMEOUT_S = 35.0
SLOW_S = 3.0


class Fault(StrEnum):
    REFUSED = "refused"  # no connection
    LOST = "request lost"  # the connection breaks before the request arrives
    UNANSWERED = "reply lost"  # it breaks after the request was executed
    LATE = "executed late"  # no reply, and executed at any time until the API server's timeout
    BUSY = "429"
    ERROR = "500"  # not executed
    APPLIED = "500 applied"
    TIMEOUT = "504 applied"
    WEBHOOK = "webhook"  # 500 at admission
    KILL_BEFORE = "kill before"  # the process dies when the request is sent, and it is not
    KILL_SENT = "kill sent"  # the process dies when the request is sent; it is executed
    KILL_LATE = "kill late"  # the same; it is executed at any time until the API server's timeout
    KILL_AFTER = "kill after"  # the process dies when the request is executed
    PAUSE = "pause"  # the process stops when the request is executed
    HELD = "held"  # a write arrives, of a read the answer does, after what others commit meanwhile
    REPLY_HELD = "reply held"  # the reply to a write does
    FORBIDDEN = "403"
    INVALID = "422"


# After these a write may be executed when its process has given it up.
_LATE = (Fault.LATE, Fault.KILL_SENT, Fault.KILL_LATE, Fault.PAUSE, Fault.HELD)
# What is held arrives after so long at the latest.
HELD_S = 20.0
_WRITES_ONLY = (Fault.WEBHOOK, Fault.APPLIED)
_STATUS: Mapping[Fault, tuple[int, str, str]] = {
    Fault.BUSY: (429, "TooManyRequests", "the server has received too many requests"),
    Fault.ERROR: (500, "InternalError", "etcdserver: leader changed"),
    Fault.APPLIED: (500, "InternalError", "etcdserver: request timed out"),
    Fault.TIMEOUT: (504, "Timeout", "Timeout: request did not complete within requested timeout"),
    Fault.FORBIDDEN: (403, "Forbidden", "denied by a policy or a quota"),
    Fault.INVALID: (422, "Invalid", "ValidatingAdmissionPolicy 'site' with binding 'site' denied request: no"),
    Fault.WEBHOOK: (500, "InternalError", 'failed calling webhook "other.example": no endpoints available'),
}


@dataclass(slots=True)
class Weather:
    """What may go wrong now. ``rates``: probability of each fault, for one request. The rest are of watches."""

    rates: dict[Fault, float] = field(default_factory=dict)
    latency_s: float = 0.004  # mean
    slow: float = 0.0  # probability of a request that takes up to ``slow_s`` in both directions
    slow_s: float = SLOW_S
    lag_s: float = 0.01  # mean of an event's delay
    stall: float = 0.0  # probability that a watch delays everything by up to 30 s from an event on
    cut: float = 0.0  # probability that a watch breaks at an event
    hang: float = 0.0  # probability that a watch stays open and silent from an event on
    expire: float = 0.0  # probability that a watch ends with 410 at an event
    pause_s: float = 20.0  # longest pause of a process


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong with a request. ``seconds``: for how long; ``commits``: until others have committed so much."""

    fault: Fault | None = None
    seconds: float | None = None
    commits: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """The way of one request: seconds in both directions, what goes wrong, for how long its process pauses then."""

    there_s: float
    back_s: float
    fault: Fault | None
    pause_s: float
    commits: int
    draw: float
    retry_after_s: int


# Returns what goes wrong with a request; without a number of seconds they are drawn.
Choose = Callable[[Process, Request, Random], Trouble]


class Network:
    """All connections. ``crash`` and ``pause`` act on the process that sent a request."""

    def __init__(self, loop: VirtualLoop, server: Server, dice: Dice, weather: Weather) -> None:
        self.loop = loop
        self.server = server
        self.dice = dice
        self.weather = weather
        self.requests = 0
        self.crash: Callable[[Process, str], None] = lambda *_: None
        self.pause: Callable[[Process, float], None] = lambda *_: None
        self.resume: Callable[[Process], None] = lambda *_: None
        # A kind of write that fails for long: method, resource and how.
        self.denial: tuple[str, str, Fault] | None = None
        self.partitioned: set[Process] = set()
        self.observers: list[Callable[[Process, Request, ServerAnswer | None, str], None]] = []
        self.on_send: Callable[[Process, Request], None] = lambda *_: None
        self.on_stream: Callable[[Process, str, str], None] = lambda *_: None
        self.choose: Choose = self._draw
        self._streams = 0
        self.is_late = False
        # How often the API server was stopped: it executes nothing that was sent before.
        self.stops = 0
        self._connections: list[_Connection] = []
        # How many commits each call still waits for.
        self._held: list[tuple[list[int], Callable[[], None]]] = []
        server.observers.append(self._on_commit)

    def plan(self, process: Process, request: Request) -> Passage:
        """Return the delays in both directions, and what goes wrong."""
        self.requests += 1
        number = self.requests
        chance = self.dice.stream("request", number)
        weather = self.weather
        there, back = chance.expovariate(1 / weather.latency_s), chance.expovariate(1 / weather.latency_s)
        if chance.random() < weather.slow:
            there, back = chance.uniform(0, weather.slow_s), chance.uniform(0, weather.slow_s)
        trouble = self.choose(process, request, chance)
        fault, seconds = trouble.fault, trouble.seconds
        if self.denial is not None and self.denial[:2] == (request.method, resource_of(request.path)):
            fault = fault or self.denial[2]
        if process in self.partitioned:
            fault, back = Fault.LOST, chance.uniform(0, CLIENT_TIMEOUT_S)
        self.is_late |= fault in _LATE
        if fault in _WRITES_ONLY and request.method == "GET":
            fault = Fault.ERROR
        if fault in (Fault.LATE, Fault.KILL_LATE):
            there = seconds if seconds is not None else chance.uniform(0, REQUEST_TIMEOUT_S - 1)
        pause_s = seconds if seconds is not None else chance.uniform(1, weather.pause_s)
        return Passage(there, back, fault, pause_s, trouble.commits, chance.random(), chance.randint(1, 3))

    def _draw(self, _: Process, request: Request, chance: Random) -> Trouble:
        draw = chance.random()
        for candidate, rate in self.weather.rates.items():
            if draw < rate:
                return Trouble(candidate)
            draw -= rate
        return Trouble()

    def partition(self, process: Process) -> None:
        """Let nothing of a process reach the API server, and nothing reach the process, until it is rejoined."""
        self.partitioned.add(process)
        for connection in self._connections:
            connection.silence_of(process)

    def hold(self, commits: int, call: Callable[[], None], seconds: float = HELD_S) -> None:
        """Make a call once others have committed so much, or after a while."""
        entry = ([commits], call)
        self._held.append(entry)
        self.loop.later(seconds, self._let_go, entry)

    def _let_go(self, entry: tuple[list[int], Callable[[], None]]) -> None:
        if entry in self._held:
            self._held.remove(entry)
            entry[1]()

    def _on_commit(self, change: Change) -> None:
        for entry in list(self._held) if change.kind.plural not in ("leases", "events") else ():
            entry[0][0] -= 1
            if entry[0][0] == 0:
                self.loop.later(0, self._let_go, entry)

    def new_stream(self) -> int:
        self._streams += 1
        return self._streams

    def stop_server(self) -> None:
        """Stop the API server: every connection breaks, and nothing that is on its way is executed."""
        self.server.is_down = True
        self.stops += 1
        for connection in self._connections:
            connection.cut()
        self._connections.clear()

    def start_server(self) -> None:
        """Start it again."""
        self.server.is_down = False

    def silence(self, plural: str, seconds: float) -> None:
        """Let the open watches of a resource deliver nothing more; they break after so long."""
        for connection in self._connections:
            connection.silence(plural, seconds)

    def connect(self, connection: "_Connection") -> None:
        """Note an open watch."""
        self._connections.append(connection)

    def disconnect(self, connection: "_Connection") -> None:
        """Note that a watch has ended."""
        if connection in self._connections:
            self._connections.remove(connection)


class SimulatedTransport(HTTPTransport):
    """The transport of one process."""

    def __init__(self, access: ClusterAccess, options: TransportOptions, network: Network, process: Process) -> None:
        super().__init__(access, options)
        self._network = network
        self._process = process

    async def send(self, request: Request) -> Answer:
        """Send one request and read the whole response. Raises ConnectionFailed or NoResponse."""
        if request.on_send is not None:
            request.on_send()
        self._network.on_send(self._process, request)
        network, loop, process = self._network, self._network.loop, self._process
        passage = network.plan(process, request)
        there, back, fault = passage.there_s, passage.back_s, passage.fault
        if fault is Fault.KILL_BEFORE:
            self._crash(fault)
            await loop.create_future()
        if fault is Fault.REFUSED or network.server.is_down:
            await asyncio.sleep(there)
            raise ConnectionFailed("connection refused")
        reply: asyncio.Future[Any] = loop.create_future()
        if fault is Fault.LOST:
            loop.later(there + back, _fail, reply, NoResponse("the connection broke"))
        elif fault in (Fault.BUSY, Fault.ERROR, Fault.WEBHOOK, Fault.FORBIDDEN, Fault.INVALID):
            loop.later(there + back, _resolve, reply, _failure(passage))
        elif fault is Fault.HELD and request.method != "GET":
            network.hold(passage.commits, partial(self._execute, request, reply, passage, network.stops))
        else:
            loop.later(there, self._execute, request, reply, passage, network.stops)
            if fault in (Fault.KILL_SENT, Fault.KILL_LATE):
                self._crash(fault)
        # The client's own timeout, as the real transport has.
        timeout = loop.later(CLIENT_TIMEOUT_S, _fail, reply, NoResponse("the API server did not answer in time"))
        try:
            answer = await reply
        finally:
            timeout.cancel()
        self.answers += 1
        return cast(Answer, answer)

    def _crash(self, fault: Fault) -> None:
        self._network.crash(self._process, fault.value)

    def _execute(self, request: Request, reply: Any, passage: Passage, stops: int) -> None:
        """The request arrives at the API server, unless that was stopped meanwhile."""
        network, loop = self._network, self._network.loop
        if network.stops != stops:
            _fail(reply, NoResponse("the connection broke"))
            return
        fault, back = passage.fault, passage.back_s
        body = orjson.loads(request.body) if request.body is not None else None
        answer = network.server.handle(
            f"reconciler {self._process.name}",
            request.method,
            request.path,
            body,
            request.content_type,
            request.accept,
        )
        for observer in network.observers:
            observer(self._process, request, answer, fault.value if fault else "")
        if fault is Fault.KILL_AFTER:
            self._crash(fault)
        if fault is Fault.PAUSE:
            network.pause(self._process, passage.pause_s)
            if passage.commits:
                network.hold(passage.commits, partial(network.resume, self._process), passage.pause_s)
        if fault is Fault.UNANSWERED:
            loop.later(back, _fail, reply, NoResponse("the connection broke"))
        elif fault in (Fault.APPLIED, Fault.TIMEOUT):
            loop.later(back, _resolve, reply, _failure(passage))
        elif fault is not Fault.LATE:
            headers = CIMultiDict({"Content-Type": "application/json", **answer.headers})
            data = orjson.dumps(answer.body) if answer.body else b"404 page not found"
            resolve = partial(_resolve, reply, Answer(answer.code, CIMultiDictProxy(headers), data))
            if fault is Fault.REPLY_HELD or (fault is Fault.HELD and request.method == "GET"):
                network.hold(passage.commits, resolve)
            else:
                loop.later(back, resolve)

    async def stream(
        self, path: str, *, accept: str, total_s: float, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """GET and yield the response's chunks; the first is empty and means that the response has begun."""
        network, loop = self._network, self._network.loop
        passage = network.plan(self._process, Request("GET", path, accept))
        fault = passage.fault
        await asyncio.sleep(min(passage.there_s, SLOW_S) + passage.back_s)
        if network.server.is_down or fault in (Fault.REFUSED, Fault.LOST, Fault.UNANSWERED, Fault.LATE):
            raise ConnectionFailed("connection refused")
        if fault in (Fault.BUSY, Fault.ERROR):
            code, reason, why = _STATUS[fault]
            raise from_response(code, {}, orjson.dumps(_status_body(code, reason, why)))
        if fault in (Fault.KILL_BEFORE, Fault.KILL_SENT, Fault.KILL_LATE, Fault.KILL_AFTER):
            self._crash(fault)
            await loop.create_future()
        connection = _Connection(network, self._process, network.new_stream(), silence_s)
        opened = network.server.watch(path, accept, connection.receive)
        network.on_stream(self._process, path, "rejected" if isinstance(opened, ServerAnswer) else "opened")
        if isinstance(opened, ServerAnswer):
            raise from_response(opened.code, opened.headers, orjson.dumps(opened.body) if opened.body else b"")
        connection.opened(opened, float(path.partition("timeoutSeconds=")[2] or 300))
        try:
            self.answers += 1
            yield b""
            while (chunk := await connection.next()) is not None:
                self.answers += 1
                yield chunk
        finally:
            connection.close()


class _Connection:
    """The events of one watch on their way: delayed, in order; the connection may stall, break or hang."""

    def __init__(self, network: Network, process: Process, number: int, silence_s: float) -> None:
        self._network = network
        self._process = process
        self._chance = network.dice.stream("watch", number)
        self._arrives = 0.0
        self._silence_s = silence_s
        self._hangs = self._closed = False
        self._watcher: Watcher | None = None
        self._queue: deque[bytes | Exception | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def opened(self, watcher: Watcher, seconds: float) -> None:
        self._watcher = watcher
        self._network.connect(self)
        loop = self._network.loop
        loop.later(min(60.0, seconds), self._bookmark)
        loop.later(seconds, self._push, None)

    def receive(self, line: bytes) -> None:
        """An event leaves the API server."""
        network, chance, weather = self._network, self._chance, self._network.weather
        if self._closed or self._hangs or self._process.state is State.DEAD:
            return
        delay, draw = chance.expovariate(1 / weather.lag_s), chance.random()
        if draw < weather.stall:
            delay = chance.uniform(1, 30)
        elif draw < weather.stall + weather.cut:
            self._end(delay, NoResponse("the connection broke"))
            return
        elif draw < weather.stall + weather.cut + weather.hang:
            self._hang(self._silence_s)
            return
        elif draw < weather.stall + weather.cut + weather.hang + weather.expire:
            # As the API server ends a watch whose place in the history it has lost.
            status = _status_body(410, "Expired", "too old resource version")
            self._end(delay, orjson.dumps({"type": "ERROR", "object": status}) + b"\n")
            self._end(delay, None)
            return
        now = network.loop.time()
        # Later than the one before: timers of equal times have no order.
        self._arrives = max(self._arrives + 1e-6, now + delay)
        network.loop.later(self._arrives - now, self._push, line)

    def _end(self, delay: float, item: bytes | Exception | None) -> None:
        """Deliver the last item, after all others."""
        now = self._network.loop.time()
        self._arrives = max(self._arrives + 1e-6, now + delay)
        self._network.loop.later(self._arrives - now, self._push, item)
        self._hangs = True

    def silence_of(self, process: Process) -> None:
        """Deliver nothing more if the watch is of that process."""
        if self._process is process:
            self._hang(self._silence_s)

    def silence(self, plural: str, seconds: float) -> None:
        """Deliver nothing more if the watch is of that resource."""
        if self._watcher is not None and self._watcher.kind.plural == plural:
            self._hang(seconds)

    def _hang(self, seconds: float) -> None:
        self._network.loop.later(seconds, self._push, NoResponse("silent for too long"))
        self._hangs = True

    def _bookmark(self) -> None:
        if not self._closed and self._watcher is not None:
            line = self._network.server.bookmark(self._watcher)
            if line is not None:
                self.receive(line)
            self._network.loop.later(60.0, self._bookmark)

    def _push(self, item: bytes | Exception | None) -> None:
        self._queue.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> bytes | None:
        while not self._queue:
            self._waiter = self._network.loop.create_future()
            await self._waiter
        item = self._queue.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def cut(self) -> None:
        """The API server was stopped."""
        self._hangs = True
        if self._watcher is not None:
            self._network.server.unwatch(self._watcher)
        self._push(NoResponse("the connection broke"))

    def close(self) -> None:
        self._closed = True
        self._network.disconnect(self)
        if self._watcher is not None:
            self._network.server.unwatch(self._watcher)


def _resolve(reply: Any, answer: Any) -> None:
    if not reply.done():
        reply.set_result(answer)


def _fail(reply: Any, error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)


def _status_body(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _failure(passage: Passage) -> Answer:
    assert passage.fault is not None
    code, reason, why = _STATUS[passage.fault]
    headers = {"Content-Type": "application/json"}
    if passage.fault is Fault.BUSY and passage.draw < 0.7:
        headers["Retry-After"] = str(passage.retry_after_s)
    return Answer(code, CIMultiDictProxy(CIMultiDict(headers)), orjson.dumps(_status_body(code, reason, why)))
