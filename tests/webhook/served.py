"""A running listener and its clients, for tests."""

import asyncio
import io
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from bowline.runtime.address import ListenAddress
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.server import AdmissionServer
from bowline_webhook.tls.ca import Leaf, to_pem
from bowline_webhook.tls.serving import ServingContext
from tests.unit.webhook.chains import marking
from tests.unit.webhook.reviews import encode

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Served:
    """A listener, a client of it, its metrics, and the trust for raw connections."""

    server: AdmissionServer
    client: aiohttp.ClientSession
    registry: CollectorRegistry
    trust: ssl.SSLContext
    serving: ServingContext
    metrics: WebhookMetrics

    async def review(self, path: str, document: Any) -> dict[str, Any]:
        """Send a review; returns its response."""
        async with self.client.post(path, data=io.BytesIO(encode(document)), headers=JSON) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            response: dict[str, Any] = orjson.loads(await answer.read())["response"]
            return response

    async def allows(self, body: bytes) -> bool:
        """Return whether a review of a pod is answered and the pod is allowed."""
        async with self.client.post("/validate/pods", data=body, headers=JSON) as answer:
            return answer.status == 200 and b'"allowed":true' in await answer.read()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw connection."""
        address = self.server.address
        return await asyncio.open_connection(address.host, address.port, ssl=self.trust)

    def sample(self, name: str, **labels: str) -> float | None:
        """Return a metric's value; None if there is no such series."""
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def served(leaf: Leaf, **options: Any) -> AsyncIterator[Served]:
    """A listener, with these options of `AdmissionServer`, whose chain is `marking`; and a client."""
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry, ["marker"])
    chain = marking(lambda plugin, point, error: metrics.plugin_errors.labels(plugin=plugin, point=point).inc())
    serving = ServingContext()
    serving.swap(leaf.pem())
    server = AdmissionServer(ListenAddress("127.0.0.1", 0), serving.context, chain, metrics, **options)
    await server.start()
    trust = ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())
    connector = aiohttp.TCPConnector(ssl=trust, limit=1)
    async with aiohttp.ClientSession(f"https://{server.address}", connector=connector) as client:
        yield Served(server, client, registry, trust, serving, metrics)
    await server.stop()


def head(path: str, length: int) -> bytes:
    """Return the head of a review's HTTP request."""
    return with_head("Content-Type: application/json", f"Content-Length: {length}", target=path)


def with_head(*lines: str, method: str = "POST", target: str = "/", version: str = "1.1") -> bytes:
    """Return a head with these lines."""
    return "\r\n".join([f"{method} {target} HTTP/{version}", "Host: x", *lines, "", ""]).encode()


def answers(out: bytes) -> list[tuple[int, bytes, bool]]:
    """Return status, body and whether it is the last, for each HTTP response. Fails on anything else."""
    responses = []
    while out:
        first, _, out = out.partition(b"\r\n\r\n")
        status = re.fullmatch(rb"HTTP/1\.[01] (\d{3}) [ \w-]+", first.split(b"\r\n")[0])
        assert status is not None, first
        length = re.search(rb"\r\nContent-Length: (\d+)", first)
        size = int(length[1]) if length else 0
        assert len(out) >= size
        responses.append((int(status[1]), out[:size], b"\r\nConnection: close" in first))
        out = out[size:]
    return responses
