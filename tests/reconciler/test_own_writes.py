"""A reconciler's own writes cause no attempt; a foreign change beside one is acted on. On a real API server.

Each test ends with a foreign change and counts until then: whatever an own write causes, it causes before that.
"""

from collections import Counter
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey, version_of
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, PODS
from bowline.runtime.workers import Result
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import ExpireWatch
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from bowline_reconciler.reconciler import Reconciler
from tests.reconciler.stage import Scripted, Stage, Working
from tests.reconciler.test_waits import needs
from tests.waiting import until, until_awaited

# Finalizer, report and nomination of a wait; a bind has the finalizer, the Binding, the finalizer and the status.
WAIT_WRITES = Counter(
    {("patch", "bindrequests"): 1, ("patch", "bindrequests/status"): 1, ("patch", "pods/status"): 1}
)
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


async def label_request(stage: Stage, working: Working, value: str) -> None:
    """Change the request as another client; returns when the reconciler's cache has the change."""
    body = {"metadata": {"labels": {"foreign": value}}}
    await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", body)

    def is_cached() -> bool:
        request = working.seen(stage.namespace)
        return request is not None and request.raw["metadata"].get("labels", {}).get("foreign") == value

    await until(is_cached)


async def label_pod(stage: Stage) -> None:
    body = {"metadata": {"labels": {"foreign": "yes"}}}
    await stage.client.patch(PODS, stage.namespace, "pod", body)


async def reports(stage: Stage, working: Working) -> None:
    """Let the wait be reported, and its writes reach the caches."""
    await until(lambda: working.sizes["waitIndex"] == 1)
    stage.clock.passed += timedelta(seconds=6)
    working.parts.controller.queue.add(ObjectKey(stage.namespace, "pod"))
    await until_awaited(stage.status, lambda status: "Waiting" in status.get("reason", ""))
    await until_awaited(stage.pod, lambda pod: "nominatedNodeName" in pod["status"])
    key = ObjectKey(stage.namespace, "pod")

    def is_cached() -> bool:
        pod = working.parts.informers.pod(key)
        return pod is not None and "nominatedNodeName" in pod["status"]

    await until(is_cached)


async def test_one_wait_has_one_attempt_and_one_for_its_report(stage: Stage, reconciles: Counter[ObjectKey]) -> None:
    plugin, calls, key = needs("data"), Calls(stage), ObjectKey(stage.namespace, "pod")
    plugin.effects = True
    await create_waiting_pod(stage)
    async with stage.working(plugin, options=calls.options) as working:
        await working.pod_cached(stage.namespace)
        await stage.request_bind()
        await reports(stage, working)
        await label_request(stage, working, "last")
        await until(lambda: len(plugin.points("pod")) >= 3 and working.sizes["waitIndex"] == 1)
        assert plugin.points("pod") == ["pre_bind"] * 3, "the first, that of the report, that of the foreign change"
        assert reconciles[key] == 3
        # An attempt that was delayed reads its request live: it may have been deleted while the watch is silent.
        assert calls.made() == WAIT_WRITES + Counter({("get", "configmaps"): 3, ("get", "bindrequests"): 2})


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


async def test_a_plugins_write_to_the_pod_causes_no_attempt(stage: Stage) -> None:
    """The label of a share is one. A foreign change of the pod does."""
    wait = needs("data")

    async def label(ctx: BindContext) -> Status:
        assert ctx.pod is not None
        effect = {"effect": str(len(plugin.points("pod")))}
        body = {"metadata": {"resourceVersion": version_of(ctx.pod), "labels": effect}}
        await ctx.client.patch(PODS, ctx.request.key.namespace, "pod", body)
        return await wait.on_pre_bind(ctx) if wait.on_pre_bind is not None else Status.ok()

    plugin = Scripted(effects=True, pre_bind=label, sources=wait.sources)
    await create_waiting_pod(stage)
    key = ObjectKey(stage.namespace, "pod")
    async with stage.working(plugin) as working:
        await working.pod_cached(stage.namespace)
        await stage.request_bind()

        def effect() -> str:
            pod = working.parts.informers.pod(key)
            labels: dict[str, str] = (pod or {"metadata": {}})["metadata"].get("labels") or {}
            return labels.get("effect", "")

        await until(lambda: effect() == "1" and working.sizes["waitIndex"] == 1)
        await label_pod(stage)
        await until(lambda: effect() == "2" and working.sizes["waitIndex"] == 1)
        await label_request(stage, working, "last")
        await until(lambda: effect() == "3" and working.sizes["waitIndex"] == 1)
        assert plugin.points("pod") == ["pre_bind"] * 3


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
        proxy.add(FaultRule(ExpireWatch(), CallMatch(("watch",), "pods")))
        working.go_on("pods")
        await until(lambda: len(plugin.points("pod")) > attempts)
        proxy.clear()
