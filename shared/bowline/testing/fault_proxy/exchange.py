"""One request through the proxy: choose its fault, forward it or not, return the reply or not.

A request that was sent to the API server is awaited even if the client disconnects: a crash of the client does not
undo a received request. A request that was not sent yet is dropped.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from bowline.kube.watching import LineSplitter
from bowline.testing.fault_proxy.calls import parse_call
from bowline.testing.fault_proxy.faults import (
    CutWatch,
    DropBefore,
    FailWatch,
    Fault,
    FaultAnswer,
    FaultGate,
    Hold,
    LoseReply,
    Page,
    Rewrite,
    StallWatch,
    WatchFault,
)
from bowline.testing.fault_proxy.record import Exchange, Record
from bowline.testing.fault_proxy.rules import WATCH_FAULTS, RuleBook

# Hop-by-hop headers; and Accept-Encoding, because the lines of a compressed watch cannot be disturbed.
_HOP = ("host", "connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding", "upgrade", "te")
_POLL_S = 0.01
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class _Reply:
    """The API server's complete reply."""

    code: int
    headers: CIMultiDict[str]
    body: bytes

    @property
    def denial(self) -> str:
        """The message of a denial; empty of any other reply."""
        with suppress(orjson.JSONDecodeError, KeyError, TypeError):
            return str(orjson.loads(self.body)["message"]) if self.code == 403 else ""
        return ""


class Relay:
    """Handles every request of one proxy."""

    def __init__(self, session: aiohttp.ClientSession, server: str, rules: RuleBook, record: Record) -> None:
        self._session = session
        self._server = server
        self._rules = rules
        self._record = record
        self._under_way: set[asyncio.Task[_Reply]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle one request. Always returns; the reply of a broken connection is discarded."""
        body = await request.read()
        call = parse_call(request.method, request.raw_path, body)
        fault = self._rules.choose(call)
        named = type(fault).__name__ if fault is not None else ""
        exchange = Exchange(self._record.begin(), call, None, replied=False, fault=named)
        match fault:
            case FaultAnswer() | Page():
                self._record.end(replace(exchange, replied=True))
                return _made_up(fault)
            case DropBefore(then):
                self._record.end(exchange)
                then()
                return _broken(request)
            case Rewrite(change):
                decoded = orjson.loads(body)
                change(decoded)
                body = orjson.dumps(decoded)
            case Hold(gate, outlives=False):
                try:
                    await _wait_open(gate)
                except asyncio.CancelledError:
                    self._record.end(exchange)
                    raise
        if call.verb == "watch":
            return await self._watch(request, exchange, fault if isinstance(fault, WATCH_FAULTS) else None)
        try:
            reply = await self._forward(request, body, exchange, fault)
        except (aiohttp.ClientError, OSError):
            self._record.end(exchange)
            return _broken(request)
        is_lost = isinstance(fault, LoseReply)
        self._record.end(replace(exchange, code=reply.code, replied=not is_lost, message=reply.denial))
        if isinstance(fault, LoseReply):
            fault.then()
            return _broken(request)
        return web.Response(status=reply.code, headers=reply.headers, body=reply.body)

    async def _forward(self, request: web.Request, body: bytes, exchange: Exchange, fault: Fault | None) -> _Reply:
        """Return the API server's reply; if the client disconnects earlier, record it nevertheless."""
        task = asyncio.create_task(self._exchange(request, body, fault))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            if isinstance(fault, Hold) and fault.lost is not None:
                await _wait_open(fault.lost)
                _broken(request)  # which cancels this handler
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(partial(self._note_unheard, exchange))
            raise

    def _note_unheard(self, exchange: Exchange, task: "asyncio.Task[_Reply]") -> None:
        has_reply = not task.cancelled() and task.exception() is None
        self._record.end(replace(exchange, code=task.result().code if has_reply else None))

    async def _exchange(self, request: web.Request, body: bytes, fault: Fault | None) -> _Reply:
        if isinstance(fault, Hold) and fault.outlives:
            await _wait_open(fault.gate)
        async with self._send(request, body) as response:
            return _Reply(response.status, _end_to_end(response.headers), await response.read())

    async def _watch(self, request: web.Request, exchange: Exchange, fault: WatchFault | None) -> web.StreamResponse:
        is_open = False
        try:
            async with self._send(request, b"") as upstream:
                is_open = True
                self._record.end(replace(exchange, code=upstream.status, replied=True))
                answer = web.StreamResponse(status=upstream.status, headers=_end_to_end(upstream.headers))
                await answer.prepare(request)
                if not await _relay(upstream, answer, fault):
                    return _broken(request)
                await answer.write_eof()
                return answer
        except (aiohttp.ClientError, OSError):
            if not is_open:
                self._record.end(exchange)
            return _broken(request)

    def _send(self, request: web.Request, body: bytes) -> "aiohttp.client._RequestContextManager":
        return self._session.request(
            request.method,
            URL(self._server + request.raw_path, encoded=True),
            headers=_end_to_end(request.headers, {"Accept-Encoding": "identity"}),
            data=body or None,
            allow_redirects=False,
        )


def _made_up(fault: FaultAnswer | Page) -> web.Response:
    """Return the injected reply."""
    if isinstance(fault, Page):
        return web.Response(status=fault.code, text=f"<html>{fault.code}</html>", content_type="text/html")
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    text = _status(fault.code, fault.message)
    return web.Response(status=fault.code, headers=headers, body=text, content_type="application/json")


def _status(code: int, message: str) -> bytes:
    """Return a metav1.Status like the API server's."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return orjson.dumps({**status, "reason": _REASONS.get(code, "InternalError"), "code": code})


async def _wait_open(gate: FaultGate) -> None:
    """Wait until a gate is open."""
    while not gate.arrive():  # noqa: ASYNC110 - opened from another thread
        await asyncio.sleep(_POLL_S)


async def _relay(upstream: aiohttp.ClientResponse, answer: web.StreamResponse, fault: WatchFault | None) -> bool:
    """Relay a watch until either side ends it, or the fault does after so many events; False if its last line breaks
    off.
    """
    lines = LineSplitter()
    events = 0
    while chunk := await upstream.content.readany():
        for line in lines.feed(chunk):
            if fault is not None and events == fault.after:
                return await _ended(answer, line, fault)
            events += 1
            await answer.write(line + b"\n")
    return True


async def _ended(answer: web.StreamResponse, line: bytes, fault: WatchFault) -> bool:
    """Do what the fault does in place of the event; False if the line breaks off."""
    match fault:
        case CutWatch():
            await answer.write(line[: len(line) // 2])
            return False
        case StallWatch():
            await asyncio.Event().wait()  # until the client disconnects, which ends this handler
        case FailWatch():
            event = b'{"type":"ERROR","object":' + _status(fault.code, "an injected fault") + b"}\n"
            await answer.write(event)
    return True


def _end_to_end(headers: Mapping[str, str], additions: Mapping[str, str] | None = None) -> CIMultiDict[str]:
    result = CIMultiDict(headers)
    for name in _HOP:
        result.popall(name, None)
    result.update(additions or {})
    return result


def _broken(request: web.Request) -> web.Response:
    """Close the connection without a reply; the returned response is discarded."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
