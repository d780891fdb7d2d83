"""A stretch of wire between a client and the real API server, which can be cut.

It passes bytes on unread (the TLS session is between the two ends) and knows two faults: the next answer is lost
after the request has reached the API server, or there is no way through at all.
"""

import asyncio
import contextlib


class Wire:
    """Listens on a port of its own and forwards to the API server: ``async with Wire(host, port) as wire``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._lose_answers = 0
        self.port = 0

    async def __aenter__(self) -> "Wire":
        await self.mend()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.cut()

    def lose_answers(self, count: int) -> None:
        """Let this many requests through and close the connection in place of their answers."""
        self._lose_answers = count

    async def cut(self) -> None:
        """Close every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._connections:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def mend(self) -> None:
        """Listen, again on the same port."""
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
                    # Cut while it connected: ``cut`` waits for this task, and has not closed these writers.
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
                self._pass_on(down[0], up[1], answers=False), self._pass_on(up[0], down[1], answers=True)
            )
        finally:
            self._connections -= writers
            for writer in writers:
                writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if answers and self._lose_answers:
                    self._lose_answers -= 1
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
        if answers:
            # Both directions end with the answer that is lost.
            reader.feed_eof()
