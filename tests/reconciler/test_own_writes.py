"""A reconciler's own writes cause no attempt; a foreign change beside one is acted on. On a real API server.

Each test ends with a foreign change and counts until then: whatever an own write causes, it causes before that.
"""

from collections import Counter
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.runtime.workers import Result
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import FailWatch
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.reconciler import Reconciler
from tests.reconciler.stage import Scripted, Stage
from tests.reconciler.test_waits import needs
from tests.waiting import until, until_awaited

ASIDE = ("leases", "events", "selfsubjectreviews")


class Calls:
    """The calls of a reconciler's client, by verb and resource; without those of Leases, events and watches."""

    def __init__(self, stage: Stage) -> None:
        self._registry = CollectorRegistry()
        metrics = KubeMetrics(self._registry)
        self.options = ClientOptions(names.FIELD_MANAGER_RECONCILER, clock=stage.clock, metrics=metrics)

    def made(self) -> Counter[tuple[str, str]]:
        """Return the calls so far."""
        samples = (sample for metric in self._registry.collect() for sample in metric.samples)
        counts: Counter[tuple[str, str]] = Counter()
        for sample in samples:
            labels = sample.labels
            is_call = sample.name == "bowline_kube_requests_total" and sample.value
            if is_call and labels["verb"] not in ("list", "watch") and labels["resource"] not in ASIDE:
                counts[labels["verb"], labels["resource"]] += int(sample.value)
        return counts


@pytest.fixture
def reconciles(monkeypatch: pytest.MonkeyPatch) -> Counter[ObjectKey]:
    """The number of reconciles of each request."""
    counts: Counter[ObjectKey] = Counter()
    reconcile = Reconciler.reconcile

    async def count(reconciler: Reconciler, key: ObjectKey) -> Result:
        counts[key] += 1
        return await reconcile(reconciler, key)

    monkeypatch.setattr(Reconciler, "reconcile", count)
    return counts


async def create_waiting_pod(stage: Stage) -> None:
    """Create the pod, and what ``needs("data")`` waits for."""
    await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
    await stage.create_pod()


async def label_pod(stage: Stage) -> None:
    body = {"metadata": {"labels": {"foreign": "yes"}}}
    await stage.client.patch(PODS, stage.namespace, "pod", body)


@pytest.mark.usefixtures("no_late_bind")
async def test_one_bind_is_reconciled_once(stage: Stage, reconciles: Counter[ObjectKey]) -> None:
    """And once without any call, when its pod has left the watch."""
    plugin, calls, key = Scripted(effects=True), Calls(stage), ObjectKey(stage.namespace, "pod")
    await stage.create_pod()
    async with stage.working(plugin, options=calls.options) as working:
        await working.pod_cached(stage.namespace)
        await stage.request_bind()
        await stage.phase("pod", "Succeeded")
        await until(lambda: working.seen(stage.namespace) is None)
        await until(lambda: not working.sizes["requests"])
        assert plugin.points("pod") == ["pre_bind", "post_bind"]
        assert reconciles[key] <= 2
        made = calls.made()
    writes = {("patch", "bindrequests"): 2, ("create", "pods/binding"): 1, ("patch", "bindrequests/status"): 1}
    assert made - Counter({("patch", "pods/status"): 1}) == Counter(writes)


async def test_a_foreign_change_that_a_list_shows_merged_with_an_own_write_causes_an_attempt(
    stage: Stage, proxy_route: tuple[FaultProxy, ClusterAccess]
) -> None:
    """The watch has expired: its list shows one version, with both changes."""
    proxy, access = proxy_route
    plugin = needs("data")
    await create_waiting_pod(stage)
    key = ObjectKey(stage.namespace, "pod")
    async with stage.working(plugin, access=access) as working:
        await working.pod_cached(stage.namespace)
        await stage.request_bind()
        await until(lambda: working.sizes["waitIndex"] == 1)
        await working.hang("pods")
        await label_pod(stage)
        stage.clock.passed += timedelta(seconds=6)
        working.parts.controller.queue.add(key)
        await until_awaited(stage.pod, lambda pod: "nominatedNodeName" in pod["status"])
        await until(lambda: working.sizes["waitIndex"] == 1 and not working.sizes["podConditions"])
        attempts = len(plugin.points("pod"))
        proxy.add(FaultRule(FailWatch(code=410), CallMatch(("watch",), "pods")))
        working.go_on("pods")
        await until(lambda: len(plugin.points("pod")) > attempts)
        proxy.clear()
