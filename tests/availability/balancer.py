"""A TCP balancer on this machine, in the place of a Service: round robin over the replicas that say they are ready.

It knows nothing of TLS or HTTP. As with a Service, a connection stays where it is once it is made, and readiness is
known a moment late. Unlike one it tries the next replica when a connection is refused, so that what is measured is
the webhook, and not how soon a dead pod is taken out of a list.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

# Kubelets ask every few seconds; sooner here, so that a scenario takes seconds and not minutes.
_ASK_EVERY_S = 0.1
_ASK_TIMEOUT_S = 2.0
_CHUNK = 65536


@dataclass(slots=True)
class Backend:
    """One replica: where it answers, where it says whether it is ready, and what it said last."""

    listen: str
    metrics: str
    ready: bool = False


@dataclass(slots=True)
class Balancer:
    """Passes connections on. ``backends`` may change at any time."""

    port: int
    backends: list[Backend] = field(default_factory=list)
    _turn: int = 0
    _connections: "set[asyncio.Task[None]]" = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen and ask for readiness until the block is left."""
        server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
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
        """Send nobody there any more."""
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
        except (aiohttp.ClientError, TimeoutError):
            backend.ready = False

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            upstream = await self._connected()
            if upstream is not None:
                await asyncio.gather(_passed_on(reader, upstream[1]), _passed_on(upstream[0], writer))
        writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self.backends)):
            ready = [backend for backend in self.backends if backend.ready]
            if not ready:
                return None
            self._turn += 1
            chosen = ready[self._turn % len(ready)]
            host, _, port = chosen.listen.rpartition(":")
            try:
                return await asyncio.open_connection(host, int(port))
            except OSError:
                chosen.ready = False
        return None


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on to the end, and the end too."""
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()
