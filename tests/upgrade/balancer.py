"""A TCP balancer on this machine in place of a Service: round robin over the ready replicas.

It is independent of TLS and HTTP. As with a Service, an open connection stays with its replica, and readiness is
observed with a delay. Unlike a Service it tries the next replica when a connection is refused, so that the webhook is
measured, and not how soon a deleted pod is removed from a list.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

# Kubelets probe every few seconds; sooner here, so that a scenario takes seconds and not minutes.
_ASK_EVERY_S = 0.1
_ASK_TIMEOUT_S = 2.0
_CHUNK = 65536


@dataclass(slots=True)
class Backend:
    """One replica: its address, the address of its readiness probe, and the last result."""

    listen: str
    metrics: str
    ready: bool = False


@dataclass(slots=True)
class Balancer:
    """Relays connections. ``backends`` may change at any time."""

    port: int
    backends: list[Backend] = field(default_factory=list)
    _turn: int = 0
    _connections: "set[asyncio.Task[None]]" = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen and probe readiness until the block ends."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        asking = asyncio.create_task(self._ask(), name="readiness")
        try:
            yield
        finally:
            asking.cancel()
            server.close()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(asking, *self._connections, return_exceptions=True)

    def forget(self, listen: str) -> None:
        """Open no further connections to it."""
        self.backends = [backend for backend in self.backends if backend.listen != listen]

    async def _ask(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_ASK_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.gather(*(self._ask_one(session, backend) for backend in list(self.backends)))
                await asyncio.sleep(_ASK_EVERY_S)

    async def _ask_one(self, session: aiohttp.ClientSession, backend: Backend) -> None:
        try:
            async with session.get(f"http://{backend.metrics}/readyz") as answer:
                backend.ready = answer.status == 200
        except TimeoutError:
            pass  # as for a kubelet, one late reply of a busy machine proves nothing
        except aiohttp.ClientError:
            backend.ready = False

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            upstream = await self._connect()
            if upstream is not None:
                await asyncio.gather(_passed_on(reader, upstream[1]), _passed_on(upstream[0], writer))
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self.backends)):
            ready = [backend for backend in self.backends if backend.ready]
            if not ready:
                return None
            self._turn += 1
            replica = ready[self._turn % len(ready)]
            host, _, port = replica.listen.rpartition(":")
            try:
                return await asyncio.open_connection(host, int(port))
            except OSError:
                replica.ready = False
        return None


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay bytes up to the end, and the end too."""
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()
