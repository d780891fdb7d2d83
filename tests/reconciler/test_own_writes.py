"""A reconciler's own writes cause no attempt; a foreign change beside one is acted on. On a real API server.

Each test ends with a foreign change and counts until then: whatever an own write causes, it causes before that.
"""

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions
from bowline.kube.metrics import KubeMetrics
from bowline.runtime.workers import Result
from bowline_reconciler.drive.reconciler import Reconciler
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until

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
