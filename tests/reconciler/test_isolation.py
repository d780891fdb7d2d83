"""A call that fails for one object fails only that object's request: reported, bounded, and no delay for others.

The webhook here is a real configuration whose endpoint refuses connections, limited to one namespace by its selector.
"""

import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.framework.binding.plugin import Budgets
from bowline.framework.config import Binding
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import NotFound, ServerError
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import NAMESPACES, PODS, VALIDATING_WEBHOOKS
from bowline.plugins.default_binder import DefaultBinder
from bowline.runtime.workqueue import SLOW_S
from bowline.testing.builders import pod
from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.faults import FaultAnswer, FaultGate, Hold
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.app import connections
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage, Working
from tests.waiting import until, until_awaited

Proxied = tuple[FaultProxy, ClusterAccess]

LABEL = "tests.bowline.dev/broken"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
# No process listens on it.
REFUSES = "https://127.0.0.1:1/"
# As many as there are workers.
BROKEN = 16
FEW = Binding(workers=BROKEN, in_flight_timeout=NO_FLIGHT)
HEALTHY, HUNG = 5, 3


@dataclass(frozen=True, slots=True)
class Broken:
    """A namespace whose webhook on pods/binding is down, and a function that removes the webhook."""

    stage: Stage
    webhook: str

    async def repair(self) -> None:
        with suppress(NotFound):
            await self.stage.client.delete(VALIDATING_WEBHOOKS, "", self.webhook)


@pytest.fixture
async def broken(stage: Stage) -> AsyncIterator[Broken]:
    """A namespace other than the stage's."""
    namespace = f"broken-{uuid.uuid4().hex[:8]}"
    other_stage = Stage(stage.client, stage.access, namespace)
    await stage.client.create(NAMESPACES, "", {"metadata": {"name": namespace, "labels": {LABEL: namespace}}})
    hook = {
        "name": "guard.tests.bowline.dev",
        "clientConfig": {"url": REFUSES},
        "rules": [RULE],
        "namespaceSelector": {"matchLabels": {LABEL: namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await stage.client.create(VALIDATING_WEBHOOKS, "", {"metadata": {"name": namespace}, "webhooks": [hook]})
    made = Broken(other_stage, namespace)
    try:
        await until_awaited(lambda: _is_in_force(other_stage), bool)
        yield made
    finally:
        await made.repair()
        await other_stage.clear()


async def _is_in_force(stage: Stage) -> bool:
    """Whether the API server calls the webhook already; it watches the configuration."""
    with suppress(NotFound):
        await stage.delete_pod("canary")
    await stage.client.create(PODS, stage.namespace, pod("canary", stage.namespace))
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "canary"}, "target": target}
    try:
        await stage.client.create(PODS, stage.namespace, body, name="canary", subresource="binding")
    except ServerError as error:
        return "failed calling webhook" in str(error) and not error.may_have_been_applied
    return False


def counted(stage: Stage) -> tuple[ClientOptions, Callable[[], float]]:
    """Options of a client, and a function that counts its Bindings with a reply of 500."""
    registry = CollectorRegistry()
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=stage.clock, metrics=KubeMetrics(registry))
    labels = {"verb": "create", "resource": "pods/binding", "code": "500"}
    return options, lambda: registry.get_sample_value("bowline_kube_requests_total", labels) or 0.0


def is_idle(working: Working, delayed: int) -> bool:
    queue = working.parts.controller.queue
    return queue is not None and queue.processing == 0 and queue.delayed >= delayed


async def test_a_namespace_whose_webhook_is_down_delays_no_other(stage: Stage, broken: Broken) -> None:
    for number in range(BROKEN):
        await broken.stage.create_pod(f"broken-{number}")
        # None of them ends: on a slow machine the first would fail before the last is delayed.
        await broken.stage.request_bind(f"broken-{number}", backoffLimit=100)
    options, rejections = counted(stage)
    async with stage.working(options=options, binding=FEW) as working:
        await until(lambda: rejections() >= BROKEN)
        # Every worker is free: the requests are delayed, none is being processed.
        await until(lambda: is_idle(working, delayed=BROKEN))
        for number in range(HEALTHY):
            await stage.create_pod(f"healthy-{number}")
            await stage.request_bind(f"healthy-{number}")
        for number in range(HEALTHY):
            assert (await stage.phase(f"healthy-{number}", "Succeeded")).get("failedAttempts", 0) == 0
        # Each of the others has been posted as often as an exponential backoff allows, not in a loop.
        assert rejections() <= BROKEN * 10


async def test_requests_bind_while_every_call_of_other_namespaces_hangs(
    stage: Stage, proxy_route: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespaces arrive one after another. No hanging call ends before the healthy requests are bound."""
    proxy, access = proxy_route
    gates = [FaultGate() for _ in range(HUNG)]
    for number in range(HEALTHY):
        await stage.create_pod(f"healthy-{number}")
    # No call ends by the client's own timeout, or by that of the plugin's calls.
    monkeypatch.setattr(DefaultBinder, "budgets", Budgets(call_s=600))
    options = ClientOptions(
        names.FIELD_MANAGER_RECONCILER, timeout_s=600, connections=connections(BROKEN), clock=stage.clock
    )
    async with stage.working(access=access, options=options, binding=FEW) as working:
        hung_stages = []
        try:
            for number, gate in enumerate(gates):
                hung_stage = Stage(stage.client, stage.access, f"{stage.namespace}-hung-{number}")
                hung_stages.append(hung_stage)
                await stage.client.create(NAMESPACES, "", {"metadata": {"name": hung_stage.namespace}})
                proxy.add(FaultRule(Hold(gate), CallMatch(("create",), "pods", "binding", hung_stage.namespace)))
                await _hang(hung_stage, working, gate)
            for number in range(HEALTHY):
                await stage.request_bind(f"healthy-{number}")
            for number in range(HEALTHY):
                assert (await stage.phase(f"healthy-{number}", "Succeeded")).get("failedAttempts", 0) == 0
            for number in range(HEALTHY):
                assert await stage.event(f"healthy-{number}", names.EVENT_BOUND)
            assert not [e for e in proxy.exchanges() if e.fault == Hold.__name__], "a hanging call has ended"
        finally:
            for gate in gates:
                gate.open()
            for hung_stage in hung_stages:
                await hung_stage.clear()


async def _hang(other: Stage, working: Working, gate: FaultGate) -> None:
    """Create more requests than there are workers, and wait until the calls of all that are started hang."""
    for number in range(BROKEN):
        await other.create_pod(f"hung-{number}")
    for number in range(BROKEN):
        await other.request_bind(f"hung-{number}", backoffLimit=100)
    await until(lambda: gate.wait_reached(0))
    reconciles = working.parts.observation.reconciles

    def lasts() -> bool:
        now = other.clock.monotonic()
        return bool(working.parts.controller.queue.depth) and all(
            now - each.since > SLOW_S for each in reconciles.values()
        )

    await until(lasts)


async def test_an_outage_costs_one_probe_for_all_requests_and_a_few_log_lines(
    stage: Stage, proxy_route: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    proxy, access = proxy_route
    count = 30
    for number in range(count):
        await stage.create_pod(f"pod-{number}")
    async with stage.working(access=access) as working:
        await until(lambda: working.parts.controller.queue.is_open)
        caplog.clear()
        calls = CallMatch(("get", "list", "create", "patch", "update", "delete"))
        proxy.add(FaultRule(FaultAnswer(503, message="etcd is unavailable"), calls))
        for number in range(count):
            await stage.request_bind(f"pod-{number}")
        await until(lambda: not working.client.availability.available)
        # All calls have ended; from here on none is sent for any request.
        await until(lambda: is_idle(working, delayed=0))
        last = proxy.latest()

        def later_calls() -> list[ProxiedCall]:
            return [exchange.call for exchange in proxy.exchanges(last)]

        await until(lambda: sum(map(_is_probe, later_calls())) >= 3)
        later = later_calls()
        assert {call.verb for call in later} <= {"list", "watch"}, later
        proxy.clear()
        for number in range(count):
            assert "failedAttempts" not in await stage.phase(f"pod-{number}", "Succeeded", "Failed")
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) <= 10, [record.getMessage() for record in lines]


def _is_probe(call: ProxiedCall) -> bool:
    return call.verb == "list" and call.resource == "bindrequests"


async def test_a_bound_pod_whose_request_cannot_be_completed_is_reported_and_not_counted(
    stage: Stage, proxy_route: Proxied
) -> None:
    proxy, access = proxy_route
    webhook_down = FaultAnswer(500, message='Internal error occurred: failed calling webhook "w": refused')
    proxy.add(FaultRule(webhook_down, CallMatch(("patch",), "bindrequests", "")))
    async with stage.working(Scripted(), access=access) as working:
        await stage.create_pod()
        await stage.request_bind(metadata={"finalizers": [names.FINALIZER]}, backoffLimit=0)
        await until(lambda: working.sizes["failing"] == 1)
        stage.clock.passed += timedelta(minutes=1)
        status = await until_awaited(stage.status, lambda status: status["reason"].startswith("Retrying: "))
        assert (status["phase"], status.get("failedAttempts", 0)) == ("Pending", 0)
        assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-0"
        assert await stage.event("pod", "BindingRetry")
        proxy.clear()
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert (status["phase"], status.get("failedAttempts", 0)) == ("Succeeded", 0)
    assert "reason" not in status
