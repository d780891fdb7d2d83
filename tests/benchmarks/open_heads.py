"""Callers of one HTTPS server that send the head of a request and never its body.

``python -m tests.benchmarks.open_heads`` takes a ``Target`` as JSON on its standard input, and prints a line when
each connection has sent its head. A connection that the server closes is opened again, until the process ends.
"""

import asyncio
import contextlib
import json
import os
import ssl
import sys

import uvloop

from tests.benchmarks.https_load import Target

HANDSHAKES = 32  # at a time: more only fill the server's backlog


async def keep_heads_open(target: Target) -> None:
    """Keep as many heads open as the target has connections; never returns."""
    trust, handshakes = ssl.create_default_context(cadata=target.ca), asyncio.Semaphore(HANDSHAKES)
    head = f"POST {target.path}?timeout=30s HTTP/1.1\r\nHost: {target.host}\r\nContent-Length: 10\r\n\r\n".encode()
    open_heads = asyncio.Semaphore(0)

    async def keep_head_open() -> None:
        is_first = True
        while True:
            with contextlib.suppress(OSError):  # the server closes connections: that is what is measured
                async with handshakes:
                    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=trust)
                    writer.write(head)
                if is_first:
                    open_heads.release()
                    is_first = False
                await reader.read()
                writer.close()

    async with asyncio.TaskGroup() as callers:
        for _ in range(target.connections):
            callers.create_task(keep_head_open())
        for _ in range(target.connections):
            await open_heads.acquire()
        print("open", flush=True)


def main() -> None:
    """Read the target and keep the heads open until the process is killed."""
    target = Target(**json.load(sys.stdin))
    os.sched_setaffinity(0, {target.cpu})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(keep_heads_open(target))


if __name__ == "__main__":
    main()
