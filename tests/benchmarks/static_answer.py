"""The limit of aiohttp: the webhook's listener without any processing.

``python -m tests.benchmarks.static_answer PEM CPU`` reads each request's body to its end and answers the same few
bytes, with the webhook's TLS settings and event loop, on one core. It prints its port and serves until its
standard input ends.
"""

import asyncio
import os
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from bowline_webhook.tls.serving import ServingContext

_ANSWER = b'{"kind":"AdmissionReview","response":{"uid":"","allowed":true}}'


async def answer(request: web.BaseRequest) -> web.Response:
    """Read the complete body and ignore it."""
    await request.read()
    return web.Response(body=_ANSWER, content_type="application/json")


async def serve(pem: bytes) -> None:
    """Serve until the parent closes our standard input."""
    serving = ServingContext()
    serving.swap(pem)
    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving.context)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main() -> int:
    """Serve on one core."""
    os.sched_setaffinity(0, {int(sys.argv[2])})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1]).read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
