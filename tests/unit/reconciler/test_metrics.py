"""docs/metrics.md lists exactly the exported metrics: name, type, labels."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from bowline.api.meta import ObjectKey
from bowline.framework.binding.lifecycle import PluginLifecycle
from bowline.framework.config import Settings
from bowline.framework.reason import Reason
from bowline.kube.client import KubeClient
from bowline.kube.metrics import KubeMetrics
from bowline.plugins.catalog import BUILTINS
from bowline.runtime.address import parse_listen
from bowline.runtime.clock import SystemClock
from bowline.runtime.metrics import new_registry
from bowline.runtime.probes import ProbeServer
from bowline_reconciler.observe import OUTCOMES, POINTS, Observation, ReconcilerMetrics
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.tls.metrics import CertificateMetrics
from tests.unit.reconciler.watching import ACTING

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
_ROW = re.compile(
    r"^\| `(?P<name>bowline_\w+)` \| (?P<type>\w+) \| (?P<labels>[\w, ]*) ?\| (?P<meaning>.+) \| (?P<alert>.+) \|$"
)
# The values of these are closed lists, or names of plugins, kinds and codes. Consider the cardinality of a new one.
LABELS = {
    *("outcome", "reason", "plugin", "point", "code", "step", "change", "policy"),
    *("verb", "resource", "cause", "callback", "hook", "allowed", "certificate", "version"),
    # Of plugins.
    *("worker", "task", "state", "how", "mode"),
    "component",
}


class Nothing:
    """A reflector without objects."""

    store: dict[str, str] = {}
    last_contact = None


@pytest.fixture
async def exported() -> dict[str, Metric]:
    """The metrics of both processes, by the name as documented."""
    reconciler, webhook = new_registry(), CollectorRegistry()
    ProbeServer(parse_listen("127.0.0.1:0"), reconciler, {}, "reconciler")
    metrics = ReconcilerMetrics(reconciler, ACTING)
    metrics.count(dict, dict, lambda: {"requests": 0})
    Observation(metrics, SystemClock())
    every = [builtin.plugin(builtin.plugin.config_model(), Settings()) for builtin in BUILTINS]
    await PluginLifecycle(every, cast(KubeClient, None), SystemClock(), reconciler).setup()
    followed = Nothing()
    kube = KubeMetrics(reconciler)
    kube.follow("pods", followed)
    kube.expect_callbacks("bowline", "pods", ("keys",))
    kube.observe("create", "pods/binding", "201", 0.003)
    WebhookMetrics(webhook, ["gpu_request"])
    CertificateMetrics(webhook)
    # Read while the reflector exists: only then it is exported.
    bowline_metrics = [m for m in (*reconciler.collect(), *webhook.collect()) if m.name.startswith("bowline_")]
    return {f"{m.name}_total" if m.type == "counter" else m.name: m for m in bowline_metrics}


def documented() -> Iterator[re.Match[str]]:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `bowline_")]
    for row in rows:
        match = _ROW.match(row)
        assert match, f"not a row of name, type, labels, meaning, alert: {row}"
        yield match


def labels(metric: Metric) -> set[str]:
    return {name for sample in metric.samples for name in sample.labels} - {"le"}


def test_every_series_is_documented_with_its_type_and_labels_and_nothing_else_is(exported: dict[str, Metric]) -> None:
    table = {row["name"]: (row["type"], set(re.findall(r"\w+", row["labels"]))) for row in documented()}
    assert table == {name: (metric.type, labels(metric)) for name, metric in exported.items()}
    assert len(table) <= 40, "first see whether a label of an existing series counts it"


def test_series_exist_before_anything_has_happened() -> None:
    registry = CollectorRegistry()
    Observation(ReconcilerMetrics(registry, ACTING), SystemClock())
    for metric in registry.collect():
        assert metric.samples, f"{metric.name} begins with its first event"
    expectation = [("bowline_attempts_total", {"outcome": outcome}) for outcome in OUTCOMES]
    expectation += [
        ("bowline_requests_finished_total", {"reason": reason.value, "plugin": plugin})
        for reason in Reason
        for plugin in ("bowline", *ACTING["pre_bind"])
    ]
    for point in POINTS:
        for plugin in ACTING[point]:
            of = {"plugin": plugin, "point": point}
            expectation += [("bowline_plugin_duration_seconds_count", {**of, "code": "OK"})]
    for point, plugins in ACTING.items():
        expectation += [("bowline_plugin_errors_total", {"plugin": plugin, "point": point}) for plugin in plugins]
    assert {registry.get_sample_value(name, of) for name, of in expectation} == {0.0}


def test_a_kind_of_request_counts_its_failures_from_the_first_request_on() -> None:
    registry = CollectorRegistry()
    metrics = KubeMetrics(registry)

    def count(code: str, verb: str = "create") -> float | None:
        of = {"verb": verb, "resource": "pods/binding", "code": code}
        return registry.get_sample_value("bowline_kube_requests_total", of)

    assert count("429") is None
    metrics.observe("create", "pods/binding", "201", 0.003)
    assert (count("201"), count("429"), count("lost")) == (1, 0, 0)
    metrics.observe("create", "pods/binding", "429", 0.003)
    assert (count("201"), count("429"), count("lost")) == (1, 1, 0)


class Mirror:
    """A reflector, as the metrics read it."""

    def __init__(self, *names: str) -> None:
        self.store = dict.fromkeys(ObjectKey("ns", name) for name in names)
        self.last_contact = SystemClock().now()


def test_reflectors_of_one_resource_add_up_and_leave_when_they_end() -> None:
    registry = CollectorRegistry()
    metrics = KubeMetrics(registry)

    def shown(name: str) -> float | None:
        return registry.get_sample_value(name, {"resource": "pods"})

    first, second = Mirror("a"), Mirror("b", "c")
    metrics.follow("pods", first)
    metrics.follow("pods", second)
    assert shown("bowline_reflector_objects") == 3
    contact = shown("bowline_reflector_last_contact_timestamp_seconds")
    assert contact == min(first.last_contact, second.last_contact).timestamp()
    del first
    assert shown("bowline_reflector_objects") == 2
    del second
    assert shown("bowline_reflector_objects") == 0
