"""Invalid values are rejected before anything is installed, with their path."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.framework.config import GpuSharingSettings, Settings, WorkloadEntry, parse_settings
from bowline.framework.workloads import TEMPLATE_PATH
from bowline.localcluster.chart import ChartRelease
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm
from bowline_cli.main import main
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, REQUIRED, Chart, Rendered

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

REFUSED = [
    pytest.param({"webhok": {}}, "", "webhok", id="a misspelt section"),
    pytest.param({"webhook": {"replica": 1}}, "/webhook", "replica", id="a misspelt key"),
    pytest.param({"reconciler": {"port": 1}}, "/reconciler", "port", id="a key of the other process"),
    pytest.param(
        {"fullnameOverride": "2nd"}, "/fullnameOverride", "begins with a letter", id="not a valid name of a Service"
    ),
    pytest.param({"webhook": {"replicas": -1}}, "/webhook/replicas", "minimum", id="replicas are not negative"),
    pytest.param({"admission": {"mode": "warn"}}, "/admission/mode", "Warn", id="an unknown admission mode"),
    pytest.param(
        {"policy": {"trusted": {"users": ["a'] || true"]}}},
        "/policy/trusted/users/0",
        "without quotes",
        id="a user that would end the CEL expression",
    ),
    pytest.param({"webhook": {"replicas": "2"}}, "/webhook/replicas", "string", id="replicas are a number"),
    pytest.param({"image": {"tag": 20260101}}, "/image/tag", "--set-string", id="a tag of digits is a text"),
    pytest.param({"webhook": {"port": 443}}, "/webhook/port", "minimum", id="a privileged port needs root"),
    pytest.param({"webhook": {"url": "http://host"}}, "/webhook/url", "https", id="the API server only calls https"),
    pytest.param(
        {"webhook": {"url": "https://a?b=c"}}, "/webhook/url", "without a user, query", id="a URL has no query"
    ),
    pytest.param({"webhook": {"tls": {"mode": "auto"}}}, "/webhook/tls/mode", "self", id="unknown certificate mode"),
    pytest.param(
        {"webhook": {"tls": {"mode": "secret"}}},
        "/webhook/tls/secretName",
        "because mode is secret",
        id="a given certificate needs the name of its Secret",
    ),
    pytest.param(
        {"webhook": {"tls": {"clientAllowedNames": ["kube-apiserver"]}}},
        "/webhook/tls/clientCASecret",
        "because clientAllowedNames is set",
        id="names of callers without the authority of their certificates",
    ),
    pytest.param(
        {"webhook": {"tls": {"clientCASecret": "callers", "clientAllowedNames": "kube-apiserver"}}},
        "/webhook/tls/clientAllowedNames",
        "array",
        id="the names of callers are a list",
    ),
    pytest.param({"webhook": {"caBundle": "x"}}, "/webhook", "caBundle", id="no caBundle can be given to render"),
    pytest.param({"webhook": {"failurePolicy": "Ignore"}}, "/webhook", "failurePolicy", id="the gate stays closed"),
    pytest.param(
        {"webhook": {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}},
        "/webhook/namespaceSelector/matchExpressions/0/operator",
        "NotIn",
        id="unknown selector operator",
    ),
    pytest.param(
        {"image": {"digest": "sha256:1"}}, "/image/digest", "64 hexadecimal", id="a digest is a whole digest"
    ),
    pytest.param({"image": {"repository": ""}}, "/image/repository", "team/bowline", id="an image has a name"),
    pytest.param({"image": {"pullSecrets": ["x"]}}, "/image/pullSecrets/0", "object", id="a pull secret has a name"),
    pytest.param({"log": {"level": "trace"}}, "/log/level", "debug", id="unknown log level"),
    pytest.param({"config": {"scheduler": "x"}}, "/config", "scheduler", id="an unknown configuration key"),
    pytest.param({"config": {"schedulerNames": []}}, "/config/schedulerNames", "minItems", id="no scheduler at all"),
    pytest.param({"config": {"schedulerNames": None}}, "/config", "schedulerNames", id="the schedulers removed"),
    pytest.param(
        {"config": {"schedulerNames": ["a'] || true"]}},
        "/config/schedulerNames/0",
        "scheduler name of letters",
        id="a scheduler name that would end the CEL expression",
    ),
    pytest.param(
        {"config": {"binding": {"waitTimeout": "10 min"}}}, "/config/binding/waitTimeout", "2m30s", id="no duration"
    ),
    pytest.param(
        {"config": {"binding": {"waitTimeout": "0s"}}},
        "/config/binding/waitTimeout",
        "longer than zero",
        id="a wait of no time",
    ),
    pytest.param(
        {"config": {"featureGates": {"Alpha": "on"}}},
        "/config/featureGates/Alpha",
        "boolean",
        id="a feature gate that is neither true nor false",
    ),
    pytest.param(
        {"config": {"workloads": [{"kind": "JobSet", "mode": "Warn"}]}},
        "/config/workloads/0",
        "mode",
        id="an unknown key of a workload",
    ),
    pytest.param(
        {"config": {"workloads": [{"kind": "JobSet", "action": "warn"}]}},
        "/config/workloads/0/action",
        "Warn",
        id="an unknown action",
    ),
    pytest.param(
        {"config": {"workloads": [{"kind": "A' || true"}]}},
        "/config/workloads/0/kind",
        "a kind such as",
        id="a kind that would end the CEL expression",
    ),
    pytest.param(
        {"config": {"workloads": [{"kind": "A", "templates": ["spec.a[0].t"]}]}},
        "/config/workloads/0/templates/0",
        "[*] for each item",
        id="no path to templates",
    ),
    pytest.param(
        {"config": {"plugins": [{"enabled": True}]}}, "/config/plugins/0", "name", id="a plugin without a name"
    ),
    *(
        pytest.param(
            {process: {"resources": {"limits": {"memory": value}}}}, f"/{process}/resources/limits/memory", word
        )
        for process in ("webhook", "reconciler")
        for value, word in (("lots", "1.5Gi"), ("-1", "1.5Gi"), (-1, "minimum"), ("1 Gi", "1.5Gi"), ("", "1.5Gi"))
    ),
    *(
        pytest.param(
            {"webhook": {"namespaceSelector": {"matchExpressions": [{"key": "a", **expression}]}}},
            f"/webhook/namespaceSelector/matchExpressions/0{place}",
            word,
        )
        for expression, place, word in (
            ({"operator": "NotIn"}, "", "values"),
            ({"operator": "In", "values": []}, "/values", "minItems"),
            ({"operator": "Exists", "values": ["a"]}, "/values", "maxItems"),
            ({"operator": "In", "values": ["a b"]}, "/values/0", "label"),
            ({"operator": "Exists", "key": "a b"}, "/key", "qualified name"),
        )
    ),
    *(
        pytest.param(values, place, "lower-case letters")
        for values, place in (
            ({"webhook": {"priorityClassName": "A b"}}, "/webhook/priorityClassName"),
            ({"reconciler": {"priorityClassName": "A b"}}, "/reconciler/priorityClassName"),
            ({"image": {"pullSecrets": [{"name": "A b"}]}}, "/image/pullSecrets/0/name"),
            ({"webhook": {"tls": {"mode": "secret", "secretName": "A b"}}}, "/webhook/tls/secretName"),
            ({"webhook": {"tls": {"clientCASecret": "A b"}}}, "/webhook/tls/clientCASecret"),
            ({"webhook": {"tls": {"issuerRef": {"name": "A b"}}}}, "/webhook/tls/issuerRef/name"),
        )
    ),
    pytest.param(
        {"reconciler": {"nodeSelector": {"a b": "c"}}}, "/reconciler/nodeSelector", "a b", id="a label's key"
    ),
    pytest.param(
        {"commonLabels": {"app.kubernetes.io/name": "x"}},
        "/commonLabels",
        "a label that neither the chart nor Kubernetes sets",
        id="a label by which the chart selects",
    ),
    pytest.param(
        {"reconciler": {"podLabels": {"a": "b c"}}},
        "/reconciler/podLabels/a",
        "value of a label",
        id="a label's value",
    ),
    pytest.param(
        {"webhook": {"serviceAccount": {"create": False}}},
        "/webhook/serviceAccount/name",
        "the name of an existing account, because create is false",
        id="neither created nor named",
    ),
    pytest.param(
        {"webhook": {"rollingUpdate": {"maxUnavailable": "half"}}},
        "/webhook/rollingUpdate/maxUnavailable",
        "a number or a percentage such as 25%",
        id="no number of pods",
    ),
    pytest.param({"webhook": {"strategy": {"type": "Recreate"}}}, "/webhook", "strategy", id="a strategy"),
    pytest.param(
        {"reconciler": {"minReadySeconds": -1}}, "/reconciler/minReadySeconds", "minimum", id="a negative time"
    ),
    pytest.param(
        {"webhook": {"dnsPolicy": "Host"}}, "/webhook/dnsPolicy", "ClusterFirstWithHostNet", id="a DNS policy"
    ),
    pytest.param(
        {"reconciler": {"hostNetwork": True}}, "/reconciler", "hostNetwork", id="a key of the webhook alone"
    ),
    pytest.param(
        {"webhook": {"extraVolumes": [{"name": "tls", "emptyDir": {}}]}},
        "/webhook/extraVolumes/0/name",
        "another name: the chart has a volume of this one",
        id="a volume of the chart",
    ),
    pytest.param(
        {"webhook": {"extraVolumeMounts": [{"name": "a"}]}},
        "/webhook/extraVolumeMounts/0",
        "mountPath",
        id="a mount without a path",
    ),
    pytest.param(
        {"global": {"imagePullSecrets": ["A b"]}}, "/global/imagePullSecrets/0", "lower-case", id="a parent's secret"
    ),
    pytest.param(
        {"global": {"imageRegistry": "a/"}},
        "/global/imageRegistry",
        "without a slash at the end",
        id="a parent's registry",
    ),
    pytest.param(
        {"monitoring": {"rules": {"enabled": "yes"}}},
        "/monitoring/rules/enabled",
        "boolean",
        id="alerts neither on nor off",
    ),
    pytest.param(
        {"webhook": {"extraArgs": ["x"]}}, "/webhook/extraArgs/0", "--drain=10s", id="an argument is a flag"
    ),
    pytest.param({"webhook": {"extraEnv": [{"value": "x"}]}}, "/webhook/extraEnv/0", "name", id="env without a name"),
    pytest.param(
        {"webhook": {"podAnnotations": {"a": 1}}}, "/webhook/podAnnotations/a", "string", id="annotations are strings"
    ),
]


@pytest.mark.parametrize(("values", "place", "word"), REFUSED)
def test_invalid_values_are_rejected_with_their_path(
    chart: Chart, values: dict[str, Any], place: str, word: str
) -> None:
    with pytest.raises(CommandError) as refusal:
        chart.render(values)
    assert f"at '{place}'" in str(refusal.value)
    assert word in str(refusal.value)


STAR = {"config": {"schedulerNames": ["*"]}}
TOGETHER = [
    pytest.param({"image": {"registry": ""}}, r"image\.registry: .*image\.digest.*pullPolicy=Never", id="registry"),
    pytest.param(
        {"webhook": {"replicas": 0}},
        r"webhook\.replicas is 0: .*mode=Off",
        id="no webhook",
    ),
    pytest.param(STAR, r"schedulerNames is .*config\.namespaces\.exclude.*mode=Warn", id="every pod of the cluster"),
]


@pytest.mark.parametrize(("values", "message"), TOGETHER)
def test_values_that_would_block_a_cluster_are_rejected_with_the_remedy(
    chart: Chart, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        chart.render(values)


TWICE = [
    pytest.param({"plugins": [{"name": "node_fit"}, {"name": "node_fit"}]}, "plugins", "node_fit", id="a plugin"),
    pytest.param({"workloads": [{"kind": "JobSet"}, {"kind": "JobSet"}]}, "workloads", "JobSet", id="a kind"),
]


@pytest.mark.parametrize(("config", "place", "name"), TWICE)
def test_duplicate_entries_are_rejected(chart: Chart, config: dict[str, Any], place: str, name: str) -> None:
    with pytest.raises(CommandError, match=rf"config\.{place}\[1\]: {name} is listed twice"):
        chart.render({"config": config})


# What no schema can express, or only the plugins know.
FOUND_BY_LINT = [
    pytest.param({"plugins": [{"name": "no_such_plugin"}]}, "no_such_plugin", id="an unknown plugin"),
    pytest.param(
        {"plugins": [{"name": "node_fit", "args": {"x": 1}}]}, "plugins[0].args.x", id="an unknown argument"
    ),
    pytest.param({"leaderElection": {"leaseDuration": "5s"}}, "renewDeadline", id="a lease that is too short"),
]


@pytest.mark.parametrize(("config", "named"), FOUND_BY_LINT)
def test_lint_finds_in_the_rendered_configuration_what_helm_accepts(
    chart: Chart, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], named: str
) -> None:
    text = chart.render({"config": config}).config_text()
    (tmp_path / "config.yaml").write_text(text)
    pods = CHART.parents[1] / "examples" / "manifests" / "good"
    assert main(["lint", f"--config={tmp_path / 'config.yaml'}", *map(str, sorted(pods.glob("*.yaml")))]) == 2
    assert named in capsys.readouterr().err


NARROW = {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["infra"]}]}
ACCEPTED = [
    pytest.param({"image": {"registry": "", "digest": "sha256:" + "a" * 64}}, id="a digest without a registry"),
    pytest.param({"image": {"registry": "", "pullPolicy": "Never"}}, id="an image on the nodes"),
    pytest.param({"image": {"registry": "", "repository": "r.example/bowline"}}, id="a registry in the repository"),
    pytest.param({"webhook": {"replicas": 0, "url": "https://a"}}, id="a webhook elsewhere"),
    pytest.param({"webhook": {"replicas": 0}, "admission": {"mode": "Off"}}, id="no webhook and nothing that denies"),
    pytest.param({"webhook": {"replicas": None}, "reconciler": {"replicas": None}}, id="replicas of autoscalers"),
    *(
        pytest.param({"reconciler": {"resources": {"limits": {"memory": value}}}}, id=f"quantity {value}")
        for value in ("512Mi", "1e9", "0.5Gi", ".5G", "+1G", 1000000000, "1000M")
    ),
    pytest.param({"webhook": {"replicas": 0}, "admission": {"mode": "Warn"}}, id="no webhook, hooks that fail open"),
    pytest.param({**STAR, "admission": {"mode": "Warn"}}, id="every pod, warned about"),
    pytest.param({"config": {**STAR["config"], "namespaces": {"exclude": ["cni"]}}}, id="every other namespace"),
    pytest.param({**STAR, "webhook": {"namespaceSelector": NARROW}}, id="every pod of some namespaces"),
]


@pytest.mark.parametrize("values", ACCEPTED)
def test_values_that_block_no_cluster_are_accepted(chart: Chart, values: dict[str, Any]) -> None:
    assert chart.render(values).objects


def test_two_servers_cannot_have_one_port(chart: Chart) -> None:
    with pytest.raises(CommandError, match=r"webhook\.port and webhook\.metricsPort must differ"):
        chart.render({"webhook": {"port": 8080}})


def test_an_older_kubernetes_is_rejected(helm_command: Helm) -> None:
    release = ChartRelease(RELEASE, CHART, NAMESPACE, set_values=REQUIRED)
    assert helm_command.template(release, kube_version="1.32.0-rc.1")
    with pytest.raises(CommandError, match=r"requires kubeVersion: >=1\.32\.0-0"):
        helm_command.template(release, kube_version="1.31.9")


def test_all_errors_are_reported_together(chart: Chart) -> None:
    with pytest.raises(CommandError) as refusal:
        chart.render({"webhook": {"replica": 1}, "config": {"foo": 1}})
    assert "/webhook" in str(refusal.value)
    assert "/config" in str(refusal.value)


def test_no_message_of_the_schema_is_a_regular_expression() -> None:
    """Helm prints the failed keyword: a pattern alone says what the value is not, a const says what it should be."""
    bare = [path for path, node in _nodes(SCHEMA) if "pattern" in node or "not" in node]
    assert [path for path in bare if not path.endswith(".if")] == []


def test_every_open_object_of_the_schema_is_listed() -> None:
    """Only maps of others are open: labels, environment, values that Kubernetes and plugins define."""
    open_places = {
        path
        for path, node in _objects(SCHEMA)
        if node.get("additionalProperties") is not False and not isinstance(node.get("additionalProperties"), dict)
    }
    assert open_places == {
        "properties.global",
        "properties.podSecurityContext",
        "properties.containerSecurityContext",
        "properties.reservation.properties.podSecurityContext",
        "properties.reservation.properties.containerSecurityContext",
        "properties.config.properties.plugins.additionalProperties.properties.args",
        "definitions.resources.properties.claims.items",
        "definitions.objects.items",
        "definitions.extraEnv.items.properties.valueFrom",
        "definitions.plugin.properties.args",
        "definitions.extraVolumes.items",
        "definitions.extraVolumeMounts.items",
        "properties.webhook.properties.affinity",
        "properties.reconciler.properties.affinity",
    }


def test_the_chart_gives_every_value_that_the_schema_knows_and_no_other() -> None:
    """Of ``config`` the chart sets four itself; names below resources and affinity are Kubernetes'."""
    kubernetes = ("resources", "affinity", "rollingUpdate", "probes")
    processes = (f".{process}.{key}." for process in ("webhook", "reconciler", "reservation") for key in kubernetes)
    own = (".config.apiVersion", ".config.kind", ".config.admission", ".config.grantedPlugins")
    contexts = (".podSecurityContext.", ".containerSecurityContext.")
    free = (*contexts, *(f".reservation{path}" for path in contexts), ".monitoring.dashboard.labels.")
    elsewhere = (".global", *own, *free, *processes)
    known = {path for path in _paths(SCHEMA, SCHEMA) if "[]" not in path and not path.startswith(elsewhere)}
    assert {path for path in _value_paths(VALUES) if not path.startswith(elsewhere)} == known


def test_the_configuration_in_the_schema_is_the_one_the_processes_read() -> None:
    model = Settings.model_json_schema(by_alias=True, mode="serialization")
    ours, theirs = SCHEMA["properties"]["config"], model
    assert set(_paths(ours, SCHEMA)) == set(_paths(theirs, model))


def test_the_patterns_of_workloads_are_those_of_the_processes() -> None:
    ours = SCHEMA["definitions"]["workload"]["properties"]
    theirs = WorkloadEntry.model_json_schema(by_alias=True)["properties"]
    assert {key: ours[key]["if"]["pattern"] for key in ("kind", "group", "resource")} == {
        key: theirs[key]["pattern"] for key in ("kind", "group", "resource")
    }
    assert ours["templates"]["items"]["if"]["pattern"] == f"^{TEMPLATE_PATH.pattern}$"
    assert ours["action"]["enum"] == theirs["action"]["enum"]


def test_the_configuration_given_by_the_chart_is_the_processes_default(manifests: Rendered) -> None:
    # The image of reservation pods, which only the chart knows; test_values_combine.py compares their contexts.
    assert without_plugins(manifests.config_text()) == Settings(
        gpu_sharing=GpuSharingSettings(agent_image="registry.example/bowline:0.1.0")
    )


def test_the_default_configuration_passes_the_schema_and_round_trips(chart: Chart) -> None:
    document = Settings().model_dump(mode="json", by_alias=True)
    assert without_plugins(chart.render({"config": document}).config_text()) == Settings()


def without_plugins(text: str) -> Settings:
    """Return the settings of a configuration, without plugins."""
    return parse_settings(text).model_copy(update={"plugins": Settings().plugins})


# --- traversing the two kinds of schema ---


def _nodes(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, list):
        for item in node:
            yield from _nodes(item, path)
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from _nodes(value, f"{path}.{key}")


def _objects(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(node, list):
        for item in node:
            yield from _objects(item, path)
    if not isinstance(node, dict):
        return
    if node.get("type") == "object":
        yield path, node
    for key, value in node.items():
        if key not in ("if", "then"):
            yield from _objects(value, f"{path}.{key}".lstrip("."))


def _value_paths(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict):
        for key, value in values.items():
            yield f"{path}.{key}"
            yield from _value_paths(value, f"{path}.{key}")


def _resolved(node: Any, root: Any) -> Any:
    for choice in node.get("anyOf", ()):
        if choice != {"type": "null"}:
            node = choice
    while "$ref" in node:
        target = root
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        node = target
    return node


def _paths(node: Any, root: Any, path: str = "") -> Iterator[str]:
    node = _resolved(node, root)
    for key, value in node.get("properties", {}).items():
        yield f"{path}.{key}"
        yield from _paths(value, root, f"{path}.{key}")
    if "items" in node:
        yield from _paths(node["items"], root, f"{path}[]")
