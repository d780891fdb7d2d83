"""The listener records a span for every review and annotates a new BindRequest with its trace context."""

import base64
import io
import ssl

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.runtime.address import ListenAddress
from bowline_webhook.hooks import Hook
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.server import AdmissionServer
from bowline_webhook.tls.ca import Leaf, to_pem
from bowline_webhook.tls.serving import ServingContext
from tests.spans import SENT, Spans, parent_of, traceparent_of
from tests.unit.webhook.chains import marking
from tests.unit.webhook.reviews import bind_request, encode, review
from tests.webhook.served import JSON


async def test_a_new_request_gets_the_trace_of_its_admission(leaf: Leaf) -> None:
    spans, serving = Spans(), ServingContext()
    serving.swap(leaf.pem())
    listen, chain = ListenAddress("127.0.0.1", 0), marking(lambda *_: None)
    metrics = WebhookMetrics(CollectorRegistry(), ())
    server = AdmissionServer(listen, serving.context, chain, metrics, tracer=spans.tracer)
    await server.start()
    body = encode(review(bind_request(), group=names.GROUP, kind=names.KIND))
    trust = ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())
    try:
        async with (
            aiohttp.ClientSession(f"https://{server.address}", connector=aiohttp.TCPConnector(ssl=trust)) as client,
            client.post(
                Hook.MUTATE_BIND_REQUESTS.value,
                data=io.BytesIO(body),
                headers={**JSON, "traceparent": SENT},
            ) as answer,
        ):
            response = orjson.loads(await answer.read())["response"]
    finally:
        await server.stop()
    patch = orjson.loads(base64.b64decode(response["patch"]))
    (span,) = spans.ended()
    assert {names.TRACEPARENT: traceparent_of(span)} in [operation["value"] for operation in patch]
    assert (span.name, parent_of(span)) == ("admission", SENT)
