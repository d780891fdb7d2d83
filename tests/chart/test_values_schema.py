"""Invalid values are rejected before anything is installed, with their path."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bowline.framework.config import GpuSharingSettings, Settings, parse_settings
from bowline.framework.workloads import TEMPLATE_PATH, WorkloadEntry
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import ChartRelease, Helm
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, REQUIRED, Chart, Rendered, merged

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SELECTOR = "/webhook/namespaceSelector/matchExpressions"

# All of them are given together: Helm reports every error.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"webhok": {}}, "", "webhok"),
    ({"fullnameOverride": "2nd"}, "/fullnameOverride", "begins with a letter"),
    ({"webhook": {"replicas": -1}}, "/webhook/replicas", "minimum"),
    ({"reconciler": {"replicas": "2"}}, "/reconciler/replicas", "string"),
    ({"admission": {"mode": "warn"}}, "/admission/mode", "Warn"),
    ({"policy": {"trusted": {"users": ["a'] || true"]}}}, "/policy/trusted/users/0", "without quotes"),
    ({"policy": {"agentImages": ["a'] || true"]}}, "/policy/agentImages/0", "without quotes"),
    ({"image": {"tag": 20260101}}, "/image/tag", "--set-string"),
    ({"image": {"digest": "sha256:1"}}, "/image/digest", "64 hexadecimal"),
    ({"image": {"pullSecrets": ["x", {"name": "A b"}]}}, "/image/pullSecrets/0", "object"),
    ({}, "/image/pullSecrets/1/name", "lower-case letters"),
    ({"webhook": {"port": 443}}, "/webhook/port", "minimum"),
    ({"webhook": {"url": "https://a?b=c"}}, "/webhook/url",
        "https://HOST:PORT with an optional path, without a user"),
    ({"webhook": {"tls": {"mode": "auto"}}}, "/webhook/tls/mode", "self"),
    ({"webhook": {"tls": {"clientCASecret": "", "clientAllowedNames": ["a"]}}}, "/webhook/tls/clientCASecret",
        "because"),
    ({"webhook": {"tls": {"secretName": "A b"}}}, "/webhook/tls/secretName", "lower-case letters"),
    ({"webhook": {"tls": {"issuerRef": {"kind": "ClusterIssuer"}}}}, "/webhook/tls/issuerRef", "name"),
    ({"webhook": {"extraArgs": ["x"]}}, "/webhook/extraArgs/0", "--drain=10s"),
    ({"webhook": {"namespaceSelector": {"matchExpressions": [
        {"key": "a", "operator": "Is"},
        {"key": "a", "operator": "NotIn"},
        {"key": "a", "operator": "In", "values": []},
        {"key": "a", "operator": "Exists", "values": ["a"]},
        {"key": "a b", "operator": "In", "values": ["a b"]}]}}}, f"{SELECTOR}/0/operator", "NotIn"),
    ({}, f"{SELECTOR}/1", "values"),
    ({}, f"{SELECTOR}/2/values", "minItems"),
    ({}, f"{SELECTOR}/3/values", "maxItems"),
    ({}, f"{SELECTOR}/4/key", "qualified name"),
    ({}, f"{SELECTOR}/4/values/0", "value of a label"),
    ({"webhook": {"resources": {"limits": {"a": "lots", "b": "-1", "c": -1, "d": "1 Gi", "e": ""}}}},
        "/webhook/resources/limits/a", "1.5Gi"),
    ({}, "/webhook/resources/limits/b", "1.5Gi"),
    ({}, "/webhook/resources/limits/c", "minimum"),
    ({}, "/webhook/resources/limits/d", "1.5Gi"),
    ({}, "/webhook/resources/limits/e", "1.5Gi"),
    ({"config": {"scheduler": "x"}}, "/config", "scheduler"),
    ({"config": {"schedulerNames": ["a'] || true"]}}, "/config/schedulerNames/0", "scheduler name of letters"),
    ({"config": {"binding": {"waitTimeout": "10 min"}}}, "/config/binding/waitTimeout", "2m30s"),
    ({"config": {"binding": {"inFlightTimeout": "0s"}}}, "/config/binding/inFlightTimeout", "longer than zero"),
    ({"config": {"featureGates": {"GangBinding": "on"}}}, "/config/featureGates/GangBinding", "boolean"),
    ({"config": {"workloads": [{"kind": "JobSet", "mode": "Warn"}, {"kind": "JobSet", "action": "warn"},
        {"kind": "A' || true"}, {"kind": "A", "templates": ["spec.a[0].t"]}]}}, "/config/workloads/0", "mode"),
    ({}, "/config/workloads/1/action", "Warn"),
    ({}, "/config/workloads/2/kind", "a kind such as"),
    ({}, "/config/workloads/3/templates/0", "[*] for each item"),
    ({"config": {"plugins": {"node_fit": {"enable": True}, "checks": True}}}, "/config/plugins/node_fit", "enable"),
    ({}, "/config/plugins/checks", "boolean"),
    ({"nodeSelector": {"a b": "c"}}, "/nodeSelector", "a b"),
    ({"commonLabels": {"app.kubernetes.io/name": "x", "a": "b c"}}, "", "a label that neither the chart"),
    ({}, "/commonLabels/a", "value of a label"),
    ({"podAnnotations": {"a": 1}}, "/podAnnotations/a", "string"),
    ({"extraEnv": [{"value": "x"}]}, "/extraEnv/0", "name"),
    ({"extraVolumes": [{"name": "tls"}]}, "/extraVolumes/0/name", "another name: the chart has a volume of this one"),
    ({"extraVolumeMounts": [{"name": "a"}]}, "/extraVolumeMounts/0", "mountPath"),
    ({"global": {"imageRegistry": "a/"}}, "/global/imageRegistry", "without a slash at the end"),
    ({"monitoring": {"rules": {"enabled": "yes"}}}, "/monitoring/rules/enabled", "boolean"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refusal(chart: Chart) -> list[str]:
    """The lines of Helm's message about all invalid values together."""
    return chart.refusal(merged(*(values for values, *_ in REFUSED))).splitlines()


@pytest.mark.parametrize(
    ("place", "word"), [pytest.param(place, word, id=f"{place} {word}") for _, place, word in REFUSED]
)
def test_invalid_values_are_rejected_with_their_path(refusal: list[str], place: str, word: str) -> None:
    assert [line for line in refusal if f"at '{place}'" in line and word in line], "\n".join(refusal)


@pytest.mark.parametrize(
    ("values", "place", "word"),
    [
        ({"webhook": {"tls": {"mode": "secret"}}}, "/webhook/tls/secretName", "because mode is secret"),
        ({"config": {"schedulerNames": []}}, "/config/schedulerNames", "minItems"),
        ({"config": {"schedulerNames": None}}, "/config", "schedulerNames"),
        ({"config": {"plugins": [{"enabled": True}]}}, "/config/plugins/0", "name"),
    ],
)
def test_values_that_exclude_one_another_are_rejected(
    chart: Chart, values: dict[str, Any], place: str, word: str
) -> None:
    lines = chart.refusal(values).splitlines()
    assert [line for line in lines if f"at '{place}'" in line and word in line]


STAR = {"config": {"schedulerNames": ["*"]}}
TWICE = {"config": {"plugins": [{"name": "node_fit"}, {"name": "node_fit"}]}}
TOGETHER = [
    pytest.param({"image": {"registry": ""}}, r"image\.registry: .*image\.digest.*pullPolicy=Never", id="registry"),
    pytest.param({"webhook": {"replicas": 0}}, r"webhook\.replicas is 0: .*mode=Off", id="no webhook"),
    pytest.param(STAR, r"schedulerNames is .*config\.namespaces\.exclude.*mode=Warn", id="every pod of the cluster"),
    pytest.param({"webhook": {"port": 8080}}, r"webhook\.port and webhook\.metricsPort must differ", id="one port"),
    pytest.param({process: {"serviceAccountName": "one"} for process in ("webhook", "reconciler")},
        r"webhook\.serviceAccountName and reconciler\.serviceAccountName must differ", id="one account"),
    pytest.param(TWICE, r"config\.plugins\[1\]: node_fit is listed twice", id="a plugin twice"),
    pytest.param({"config": {"admission": {"mode": "Warn"}}},
        r"config\.admission\.mode is Warn .* set admission\.mode alone", id="a mode in another place"),
    pytest.param({"config": {"workloads": [{"kind": "JobSet"}, {"kind": "JobSet"}]}},
        r"config\.workloads\[1\]: JobSet is listed twice", id="a kind twice"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), TOGETHER)
def test_values_that_would_block_a_cluster_are_rejected_with_the_remedy(
    chart: Chart, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        chart.render(values)


NARROW = {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["infra"]}]}
QUANTITIES = dict(zip("abcdefg", ("512Mi", "1e9", "0.5Gi", ".5G", "+1G", 1000000000, "1000M"), strict=True))
ACCEPTED = [
    pytest.param({"image": {"registry": "", "digest": "sha256:" + "a" * 64}}, id="a digest without a registry"),
    pytest.param({"image": {"registry": "", "repository": "r.example/bowline"}}, id="a registry in the repository"),
    pytest.param({"webhook": {"replicas": 0, "url": "https://a"}}, id="a webhook elsewhere"),
    pytest.param({"webhook": {"replicas": 0}, "admission": {"mode": "Off"}}, id="no webhook and nothing that denies"),
    pytest.param({"reconciler": {"resources": {"limits": QUANTITIES}}}, id="quantities"),
    pytest.param({"webhook": {"replicas": 0}, "admission": {"mode": "Warn"}}, id="no webhook, hooks that fail open"),
    pytest.param({**STAR, "admission": {"mode": "Warn"}}, id="every pod, warned about"),
    pytest.param({**STAR, "webhook": {"namespaceSelector": NARROW}}, id="every pod of some namespaces"),
]


@pytest.mark.parametrize("values", ACCEPTED)
def test_values_that_block_no_cluster_are_accepted(chart: Chart, values: dict[str, Any]) -> None:
    assert chart.render(values).objects


def test_an_older_kubernetes_is_rejected(helm_command: Helm) -> None:
    release = ChartRelease(RELEASE, CHART, NAMESPACE, set_values=REQUIRED)
    assert helm_command.template(release, kube_version="1.32.0-rc.1")
    with pytest.raises(CommandError, match=r"requires kubeVersion: >=1\.32\.0-0"):
        helm_command.template(release, kube_version="1.31.9")


def test_the_chart_gives_every_value_that_the_schema_knows_and_no_other() -> None:
    """Of ``config`` the chart sets four itself; names below resources and affinity are Kubernetes'."""
    kubernetes = (".affinity", ".podSecurityContext.", ".containerSecurityContext.", ".webhook.namespaceSelector.")
    maps = (".webhook.tls.issuerRef.", ".monitoring.dashboard.labels.")
    resources = (f".{process}.resources" for process in ("webhook", "reconciler", "reservation"))
    own = (".config.apiVersion", ".config.kind", ".config.admission", ".config.grantedPlugins")
    elsewhere = (".global", *own, *maps, *kubernetes, *resources)
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
    # The image of reservation pods, which only the chart knows; another test compares their contexts.
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
