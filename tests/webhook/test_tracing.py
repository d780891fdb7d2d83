"""The listener records a span for every review and annotates a new BindRequest with its trace context."""

import base64
import io
import ssl

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from shared.api import names
from shared.runtime.address import ListenAddress
from tests.spans import SENT, Kept
from tests.unit.webhook.chains import marking
from tests.unit.webhook.reviews import bind_request, encoded, review
from tests.webhook.served import JSON
from webhook.hooks import Hook
from webhook.metrics import WebhookMetrics
from webhook.server import AdmissionServer
from webhook.tls.ca import Leaf, to_pem
from webhook.tls.serving import ServingContext


async def test_a_new_request_gets_the_trace_of_its_admission(leaf: Leaf) -> None:
    tracer, serving = Kept(), ServingContext()
    serving.swap(leaf.pem())
    listen, chain = ListenAddress("127.0.0.1", 0), marking(lambda *_: None)
    metrics = WebhookMetrics(CollectorRegistry(), ())
    server = AdmissionServer(listen, serving.context, chain, metrics, tracer=tracer)
    await server.start()
    body = encoded(review(bind_request(), group=names.GROUP, kind=names.KIND))
    trust = ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())
    try:
        async with (
            aiohttp.ClientSession(f"https://{server.address}", connector=aiohttp.TCPConnector(ssl=trust)) as client,
            client.post(
                Hook.MUTATE_BIND_REQUESTS.value,
                data=io.BytesIO(body),
                headers={**JSON, "traceparent": "the caller's"},
            ) as answer,
        ):
            response = orjson.loads(await answer.read())["response"]
    finally:
        await server.stop()
    patch = orjson.loads(base64.b64decode(response["patch"]))
    assert {names.TRACEPARENT: SENT} in [operation["value"] for operation in patch]
    ((span, parent),) = tracer.spans
    assert (span.name, parent) == ("admission", "the caller's")
    assert span.ended >= span.began
