"""What a test has in hand of a running listener."""

import asyncio
import io
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from tests.unit.webhook.exchanges import with_head
from tests.unit.webhook.reviews import encoded
from webhook.metrics import WebhookMetrics
from webhook.server import AdmissionServer
from webhook.tls.serving import ServingContext

MAX_IN_FLIGHT = 3
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Served:
    """A listener, a client of it, its metrics, and the trust for connections by hand."""

    server: AdmissionServer
    client: aiohttp.ClientSession
    registry: CollectorRegistry
    trust: ssl.SSLContext
    serving: ServingContext
    metrics: WebhookMetrics

    async def review(self, path: str, document: Any) -> dict[str, Any]:
        """Send a review; returns the response within the answer."""
        async with self.client.post(path, data=io.BytesIO(encoded(document)), headers=JSON) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            response: dict[str, Any] = orjson.loads(await answer.read())["response"]
            return response

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to write to by hand."""
        address = self.server.address
        return await asyncio.open_connection(address.host, address.port, ssl=self.trust)

    def sample(self, name: str, **labels: str) -> float | None:
        """Return a metric's value; None if there is no such series."""
        return self.registry.get_sample_value(name, labels)


def head(path: str, length: int) -> bytes:
    """Return the head of a request by hand."""
    return with_head("Content-Type: application/json", f"Content-Length: {length}", target=path)
