"""Errors that depend on what is stored: denied in Enforce, warned about in Warn, not looked for in Off."""

import ssl
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import AdmissionMode, Settings
from bowline.runtime.address import ListenAddress
from bowline_webhook.hooks import Hook, Review
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.server import AdmissionServer, ClusterReads
from bowline_webhook.tls.ca import Leaf, to_pem
from bowline_webhook.tls.serving import ServingContext
from tests.unit.webhook.reviews import bind_request, review

STORED = FieldError(
    Rule("bindrequest/repeated", "a test's"), "spec.selectedNode", "n", "this decision failed 1 s ago"
)
REVIEW = review(bind_request(), group="scheduling.run.ai", kind="BindRequest")


async def answered(leaf: Leaf, mode: AdmissionMode, document: Any) -> dict[str, Any]:
    """The response of a listener for whose every review there is a stored error."""

    def errors(hook: Hook, incoming: Review) -> tuple[FieldError, ...]:
        return (STORED,)

    serving = ServingContext()
    serving.swap(leaf.pem())
    server = AdmissionServer(
        ListenAddress("127.0.0.1", 0),
        serving.context,
        AdmissionChain([], Settings()),
        WebhookMetrics(CollectorRegistry(), []),
        mode=mode,
        reads=ClusterReads(errors=errors),
    )
    await server.start()
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=to_pem([leaf.signer]).decode()))
    try:
        async with (
            aiohttp.ClientSession(f"https://{server.address}", connector=connector) as client,
            client.post(Hook.MUTATE_BIND_REQUESTS, json=document) as reply,
        ):
            body: dict[str, Any] = await reply.json()
    finally:
        await server.stop()
    response: dict[str, Any] = body["response"]
    return response


async def test_a_stored_error_is_denied_in_enforce(leaf: Leaf) -> None:
    response = await answered(leaf, "Enforce", REVIEW)
    assert not response["allowed"]
    assert response["auditAnnotations"]["rules"] == "bindrequest/repeated"


async def test_a_stored_error_is_a_warning_in_warn(leaf: Leaf) -> None:
    response = await answered(leaf, "Warn", REVIEW)
    assert response["allowed"]
    assert len(response["warnings"]) == 1
    assert response["auditAnnotations"]["rules"] == "bindrequest/repeated"


async def test_no_stored_error_is_looked_for_in_off(leaf: Leaf) -> None:
    assert await answered(leaf, "Off", REVIEW) == {"uid": "uid-1", "allowed": True}


async def test_an_error_of_the_object_itself_is_reported_alone(leaf: Leaf) -> None:
    broken = review(bind_request(selectedNode=5), group="scheduling.run.ai", kind="BindRequest")
    assert (await answered(leaf, "Enforce", broken))["auditAnnotations"]["rules"] == "bindrequest/schema"
