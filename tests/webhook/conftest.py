"""The webhook's own listener over TLS, in this process, and a client that trusts it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from shared.runtime.probes import ListenAddress
from tests.unit.webhook.chains import marking
from tests.webhook.served import Served
from webhook.certs.context import context_from_pair
from webhook.certs.selfsigned import ServingPair, make_serving_pair
from webhook.metrics import WebhookMetrics
from webhook.server import AdmissionServer


@pytest.fixture(scope="session")
def serving_pair() -> ServingPair:
    """A certificate for the loopback address."""
    return make_serving_pair(["127.0.0.1"], datetime.now(UTC))


@pytest.fixture
async def served(serving_pair: ServingPair) -> AsyncIterator[Served]:
    """A listener with a chain that marks pods and refuses what it is asked to."""
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry, ["marker"])
    chain = marking(lambda plugin, point, error: metrics.plugin_errors.labels(plugin=plugin, point=point).inc())
    server = AdmissionServer(ListenAddress("127.0.0.1", 0), context_from_pair(serving_pair), chain, metrics)
    await server.start()
    trust = ssl.create_default_context(cadata=serving_pair.authority.decode())
    connector = aiohttp.TCPConnector(ssl=trust, limit=1)
    async with aiohttp.ClientSession(f"https://{server.address}", connector=connector) as client:
        yield Served(server, client, registry, trust)
    await server.stop()
    # A connection whose body was not read to its end is read on for a while, in a task that nobody waits for.
    lingering = [task for task in asyncio.all_tasks() if "RequestHandler" in repr(task.get_coro())]
    await asyncio.gather(*lingering, return_exceptions=True)
