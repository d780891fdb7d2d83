"""A TCP relay between a client and the real API server, which can be cut.

It relays bytes unchanged, because the TLS session is between the two ends. It has two faults: the next reply is lost
after the request has reached the API server, or no connection is possible.
"""

import asyncio
import contextlib
from dataclasses import replace

from bowline.kube.config import ClusterAccess, load_access


class Wire:
    """Listens on its own port and relays to the API server: ``async with Wire(host, port) as wire``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._lose_replies = 0
        self.port = 0

    async def __aenter__(self) -> "Wire":
        await self.restore()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cut()

    def access(self, direct: ClusterAccess) -> ClusterAccess:
        """Return the access through the relay."""
        return load_access(replace(direct.files, url=f"https://127.0.0.1:{self.port}"))

    def lose_replies(self, count: int) -> None:
        """Relay this many requests and close the connection instead of relaying their replies."""
        self._lose_replies = count

    async def cut(self) -> None:
        """Close every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._connections:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def restore(self) -> None:
        """Listen again, on the same port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection(*self._target)
                if self._server is None:
                    # Cut while connecting: ``cut`` waits for this task and has not closed these writers.
                    writer.close()
                    up_writer.close()
                    return
                await self._join((reader, writer), (up_reader, up_writer))
        finally:
            self._tasks.discard(task)

    async def _join(
        self,
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        writers = {down[1], up[1]}
        self._connections |= writers
        try:
            await asyncio.gather(
                self._relay(down[0], up[1], answers=False), self._relay(up[0], down[1], answers=True)
            )
        finally:
            self._connections -= writers
            for writer in writers:
                writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if answers and self._lose_replies:
                    self._lose_replies -= 1
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
        if answers:
            # Both directions end with the lost reply.
            reader.feed_eof()
