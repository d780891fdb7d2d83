"""Monitoring objects: what is scraped, and alerts that are valid, exported, documented, and fire when they should."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.framework.reason import Reason
from tests.chart.monitoring.promtool import find_promtool
from tests.chart.rendering import CHART, Chart, Rendered
from tests.unit.reconciler.test_metrics import documented

EVERY: Mapping[str, Any] = {
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True, "annotations": {"grafana_folder": "GPU"}},
}
ALERTS_PAGE = CHART.parents[1] / "docs" / "alerts.md"
APISERVER = {"apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count"}
# Labels of a target: the operator's PodMonitor sets them.
TARGET = {"namespace", "job"}
# Verbs of kubectl that change nothing; the one ``create`` is a dry run.
LOOKING = {"get", "describe", "logs", "auth", "top", "create"}


@pytest.fixture(scope="module")
def monitoring_manifests(chart: Chart) -> Rendered:
    """The chart with everything of its section ``monitoring``."""
    return chart.render({"monitoring": EVERY})


@pytest.fixture(scope="module")
def rules(monitoring_manifests: Rendered) -> list[dict[str, Any]]:
    """The rendered alerts."""
    (group,) = monitoring_manifests.get("PrometheusRule", "bowline")["spec"]["groups"]
    alert_rules: list[dict[str, Any]] = group["rules"]
    return alert_rules


def promtool(folder: Path, spec: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool in the folder, which gets the rules as ``alerts.yaml``."""
    binary = find_promtool()
    if binary is None:
        pytest.skip("needs promtool, which is in Debian's package prometheus")
    (folder / "alerts.yaml").write_text(yaml.safe_dump(spec))
    return subprocess.run([binary, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_is_rendered_by_default(manifests: Rendered) -> None:
    assert manifests.of_kind("PodMonitor", "ServiceMonitor", "PrometheusRule") == []


def test_both_processes_are_scraped_and_no_job_is(monitoring_manifests: Rendered) -> None:
    monitor = monitoring_manifests.get("PodMonitor", "bowline")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    scraped = []
    for owner in monitoring_manifests.of_kind("Deployment", "Job"):
        template = owner["spec"]["template"]
        if monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
            containers = template["spec"]["containers"]
            names = [named["name"] for container in containers for named in container.get("ports", ())]
            scraped += [owner["metadata"]["name"]] * names.count(endpoint["port"])
    assert sorted(scraped) == ["bowline-reconciler", "bowline-webhook"]


def test_every_metric_and_label_of_the_alerts_is_exported(rules: list[dict[str, Any]]) -> None:
    """``documented`` is what the processes export: a test of the metrics compares the two."""
    exported = {row["name"]: {*re.findall(r"\w+", row["labels"]), "le"} for row in documented()}
    for rule in rules:
        expression = rule["expr"]
        if "apiserver_" in expression:
            # Metrics of the API server: `test_calls_live` reads them from a real one.
            assert set(re.findall(r"\b\w+(?=\{)", expression)) == APISERVER
            continue
        names = {name.removesuffix("_bucket") for name in re.findall(r"\bbowline_\w+", expression)}
        assert names
        assert names <= set(exported), rule["alert"]
        words = re.findall(r"(?:by \(|\{)([^)}]*)[)}]", expression)
        labels = {label for text in words for label in re.findall(r"(\w+)(?=\s*(?:,|$|!?=))", text)} - TARGET
        assert labels <= set().union(*(exported[name] for name in names)), rule["alert"]
        reasons = {reason for text in re.findall(r'reason[!=]~"([^"]*)"', expression) for reason in text.split("|")}
        assert reasons <= {"Succeeded", *Reason}, rule["alert"]


def test_every_metric_and_label_of_the_dashboard_is_exported(monitoring_manifests: Rendered) -> None:
    dashboard = json.loads(monitoring_manifests.get("ConfigMap", "bowline-dashboard")["data"]["bowline.json"])
    exported = {row["name"]: {*re.findall(r"\w+", row["labels"]), "le"} for row in documented()}
    for panel in dashboard["panels"]:
        assert [target["refId"] for target in panel["targets"]] == list("ABC"[: len(panel["targets"])])
        for target in panel["targets"]:
            query, legend, title = target["expr"], target["legendFormat"], panel["title"]
            names = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:bowline|process)_\w+", query)}
            known = set().union(*(exported.get(name, set()) for name in names))
            assert {name for name in names if name.startswith("bowline_")} <= set(exported), title
            assert 'namespace="$namespace"' in query, title
            grouped = {label for text in re.findall(r"by \(([^)]*)\)", query) for label in text.split(", ")}
            assert grouped <= known | TARGET | {"pod"}, title
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped, title
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) == 12


def test_every_alert_has_a_section_that_its_annotation_names(rules: list[dict[str, Any]]) -> None:
    text = ALERTS_PAGE.read_text(encoding="utf-8")
    sections = {part.split("\n", 1)[0]: part for part in text.split("\n## ")[1:]}
    alerts = [rule["alert"] for rule in rules]
    assert alerts == [title for title in sections if title.startswith("Bowline")]
    assert len(alerts) <= 12
    assert "create --dry-run=server" in text
    for rule in rules:
        assert "runbook_url" not in rule["annotations"], "no documentation is published by default"
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        section = sections[rule["alert"]]
        first = re.match(r"\w+\n\nFirst commands?(.*?)Mitigation: ", section, re.DOTALL)
        assert first, "the remedy is what its reader sees first"
        verbs = re.findall(r"\bkubectl (?:-n \S+ )?([a-z]+)", first[1])
        assert verbs
        assert set(verbs) <= LOOKING, rule["alert"]
        assert "Symptom: " in section, rule["alert"]
        assert "Cause: " in section, rule["alert"]


def test_a_release_without_admission_misses_no_webhook(chart: Chart) -> None:
    rule = chart.render({"monitoring": EVERY, "admission": {"mode": "Off"}}).get("PrometheusRule", "bowline")
    alerts = {alert["alert"] for alert in rule["spec"]["groups"][0]["rules"]}
    assert alerts >= {"BowlineNoLeader", "BowlineNotReady"}
    assert "BowlineNoWebhook" not in alerts


def test_alerts_are_routed_left_out_and_linked_by_values(chart: Chart) -> None:
    rule_values = {
        "enabled": True,
        "alertLabels": {"team": "gpu", "severity": "page"},
        "disabled": ["BowlineWebhookSlow"],
        "runbookURL": "https://docs.example.com/operations",
    }
    manifests = chart.render({"monitoring": {"rules": rule_values}})
    (group,) = manifests.get("PrometheusRule", "bowline")["spec"]["groups"]
    assert "BowlineWebhookSlow" not in [rule["alert"] for rule in group["rules"]]
    assert {(rule["labels"]["team"], rule["labels"]["severity"]) for rule in group["rules"]} == {("gpu", "page")}
    url = group["rules"][0]["annotations"]["runbook_url"]
    assert url == "https://docs.example.com/operations#bowlinenoleader"
    for config, page in (("https://docs.example.com/", "https://docs.example.com/alerts.html"), ("", None)):
        rendering = chart.render({"monitoring": EVERY, "config": {"docsURL": config}})
        annotations = rendering.get("PrometheusRule", "bowline")["spec"]["groups"][0]["rules"][0]["annotations"]
        assert annotations.get("runbook_url") == (f"{page}#bowlinenoleader" if page else None)


def test_promtool_accepts_the_rules(
    monitoring_manifests: Rendered, rules: list[dict[str, Any]], tmp_path: Path
) -> None:
    result = promtool(
        tmp_path, monitoring_manifests.get("PrometheusRule", "bowline")["spec"], "check", "rules", "alerts.yaml"
    )
    assert result.returncode == 0, result.stderr
    assert f"SUCCESS: {len(rules)} rules found" in result.stdout


def test_each_alert_fires_with_its_fault_and_none_without(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    text = (Path(__file__).parent / "alerts_test.yaml").read_text(encoding="utf-8")
    (tmp_path / "alerts_test.yaml").write_text(text)
    cases = [case for test in yaml.safe_load(text)["tests"] for case in test["alert_rule_test"]]
    for firing in (True, False):
        tested = {case["alertname"] for case in cases if bool(case.get("exp_alerts")) is firing}
        assert tested == {rule["alert"] for rule in rules}
    # Their texts are checked above; here labels identify an alert.
    bare = [{key: value for key, value in rule.items() if key != "annotations"} for rule in rules]
    spec = {"groups": [{"name": "bowline", "rules": bare}]}
    result = promtool(tmp_path, spec, "test", "rules", "alerts_test.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
