"""The webhook's own listener over TLS, in this process, and a client that trusts it."""

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from bowline.runtime.address import ListenAddress
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.server import AdmissionServer
from bowline_webhook.tls.ca import Leaf, make_authority, sign_leaf, to_pem
from bowline_webhook.tls.serving import ServingContext
from tests.unit.webhook.chains import marking
from tests.webhook.served import Served


@pytest.fixture(scope="session")
def leaf() -> Leaf:
    """A certificate for the loopback address."""
    now, life = datetime.now(UTC), timedelta(days=1)
    return sign_leaf(make_authority(now, life), ["127.0.0.1"], now, life)


@pytest.fixture
async def listener(leaf: Leaf) -> AsyncIterator[Served]:
    """A listener whose chain modifies pods and denies those that are marked for it."""
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry, ["marker"])
    chain = marking(lambda plugin, point, error: metrics.plugin_errors.labels(plugin=plugin, point=point).inc())
    serving = ServingContext()
    serving.swap(leaf.pem())
    server = AdmissionServer(ListenAddress("127.0.0.1", 0), serving.context, chain, metrics)
    await server.start()
    trust = ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())
    connector = aiohttp.TCPConnector(ssl=trust, limit=1)
    async with aiohttp.ClientSession(f"https://{server.address}", connector=connector) as client:
        yield Served(server, client, registry, trust, serving, metrics)
    await server.stop()
