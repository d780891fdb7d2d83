"""The webhook's shutdown table: when a stopping replica is ready, and when it closes connections."""

import asyncio
import ssl
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.runtime.address import parse_listen
from bowline_webhook.app import _stop_steps
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.server import AdmissionServer

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("drain_s", [0.0, 8.0, 30.0])
async def test_stopping_replica_is_not_ready_for_the_last_quarter_of_its_drain(drain_s: float) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    metrics = WebhookMetrics(CollectorRegistry(), [])
    server = AdmissionServer(parse_listen(":0"), context, AdmissionChain([], Settings()), metrics)
    loop = asyncio.get_running_loop()
    serve, close, stop = _stop_steps(timedelta(seconds=drain_s), server)
    began = loop.time()
    await serve.run()
    assert loop.time() - began == pytest.approx(drain_s * 0.75)
    assert server.not_ready_reason() == "not listening yet"
    await close.run()
    assert loop.time() - began == pytest.approx(drain_s)
    assert server.not_ready_reason() == "stopping"
    await stop.run()
    assert loop.time() - began == pytest.approx(drain_s)
