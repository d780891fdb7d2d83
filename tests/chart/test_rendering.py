"""The rendered objects by values: names, presets, and the invariants under all of them."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bowline.framework.config import parse_settings
from tests.chart.presets import PRESETS
from tests.chart.rendering import CHART, Chart, Rendered, merged

NAMES = [
    pytest.param("bowline", {}, "bowline", id="the release's name"),
    pytest.param("bowline", {"fullnameOverride": "knot"}, "knot", id="a given name has priority"),
    pytest.param("r" * 53, {}, "r" * 52, id="the longest release name is cut so that every suffix fits"),
    pytest.param("a" * 51 + "-b", {}, "a" * 51, id="a cut name does not end in a dash"),
    pytest.param("knot.prod", {}, "knot-prod", id="a Service has no dot in its name"),
    pytest.param("2nd", {}, "bowline-2nd", id="a Service's name begins with a letter"),
]


def workloads(manifests: Rendered) -> list[Any]:
    return manifests.of_kind("Deployment")


def pods(manifests: Rendered) -> list[Any]:
    return [workload["spec"]["template"]["spec"] for workload in manifests.of_kind("Deployment", "Job")]


def container(manifests: Rendered, name: str) -> Any:
    (process_container,) = manifests.get("Deployment", name)["spec"]["template"]["spec"]["containers"]
    return process_container


# --- names ---


@pytest.mark.parametrize(("release", "values", "base"), NAMES)
def test_names_follow_the_release_and_fit(chart: Chart, release: str, values: dict[str, Any], base: str) -> None:
    manifests = chart.render(values, release=release)
    names = {kind: sorted(o["metadata"]["name"] for o in manifests.of_kind(kind)) for kind, _ in manifests.by_kind}
    assert names["Deployment"] == [f"{base}-reconciler", f"{base}-webhook"]
    # The account of reservation pods does not depend on the release: pods of an earlier release have it.
    assert names["ServiceAccount"] == sorted([*names["Deployment"], f"{base}-test", "bowline-gpu-agent"])
    assert names["Service"] == names["MutatingWebhookConfiguration"] == [f"{base}-webhook"]
    assert names["ValidatingWebhookConfiguration"] == [f"{base}-webhook"]
    assert names["PodDisruptionBudget"] == names["Deployment"]
    parts = ("agent", "info", "reconciler", "shares", "test", "uninstall", "webhook")
    assert names["Role"] == names["RoleBinding"] == [f"{base}-{part}" for part in parts]
    # Names of policies and ConfigMaps may be longer: neither is a label, nor the name of a Service or of a pod.
    long = ("ValidatingAdmissionPolicy", "ConfigMap")
    short = {kind: object_names for kind, object_names in names.items() if not kind.startswith(long)}
    assert all(len(name) <= 63 for object_names in short.values() for name in object_names)
    assert f"--lease-name={base}-reconciler" in container(manifests, f"{base}-reconciler")["args"]


@pytest.mark.parametrize("word", ["1e3", "true"])
def test_a_name_that_yaml_would_parse_as_another_type_is_a_string(chart: Chart, word: str) -> None:
    tls = {"mode": "secret", "secretName": word, "clientCASecret": word}
    config = {"gpuSharing": {"reservationNamespace": word}}
    values = {"webhook": {"tls": tls}, "priorityClassName": word, "config": config}
    manifests = chart.render(values, release=word, namespace=word)
    for obj in manifests.objects:
        labels, subjects = obj["metadata"].get("labels") or {}, obj.get("subjects") or []
        assert labels.get("app.kubernetes.io/instance") == word
        assert obj["metadata"].get("namespace", word) == word
        accounts = [subject for subject in subjects if subject["kind"] == "ServiceAccount"]
        assert [subject["namespace"] for subject in accounts] == [word] * len(accounts)
    for _, hook in manifests.hooks():
        assert hook["clientConfig"]["service"]["namespace"] == word
    for deployment in workloads(manifests):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["priorityClassName"] == word
        assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] in ([word, word], [])
    manifests = chart.render({"webhook": {"tls": {"mode": "cert-manager", "secretName": word}}}, namespace=word)
    assert manifests.get("Certificate", "bowline-webhook")["spec"]["secretName"] == word


# --- invariants under every preset ---


@pytest.mark.parametrize("values", PRESETS)
def test_every_pod_meets_the_restricted_standard(chart: Chart, values: dict[str, Any]) -> None:
    for pod in pods(chart.render(values)):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10000,
            "runAsGroup": 10000,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
        assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} <= {"configMap", "secret"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("values", PRESETS)
def test_pods_are_matched_by_their_own_selectors_only(chart: Chart, values: dict[str, Any]) -> None:
    manifests = chart.render(values)
    selectors = [deployment["spec"]["selector"]["matchLabels"] for deployment in workloads(manifests)]
    labels = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in workloads(manifests)]
    matches = [[selector.items() <= label.items() for label in labels] for selector in selectors]
    assert matches == [[True, False], [False, True]]
    webhook = manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["metadata"]["labels"]
    assert manifests.get("Service", "bowline-webhook")["spec"]["selector"].items() <= webhook.items()
    for budget in manifests.of_kind("PodDisruptionBudget"):
        same = manifests.get("Deployment", budget["metadata"]["name"])["spec"]["template"]["metadata"]["labels"]
        selector = budget["spec"]["selector"]["matchLabels"]
        assert [label for label in labels if selector.items() <= label.items()] == [same]


@pytest.mark.parametrize("values", PRESETS)
def test_the_mounted_configuration_is_one_that_the_processes_read(chart: Chart, values: dict[str, Any]) -> None:
    manifests = chart.render(values)
    text = manifests.config_text()
    settings = parse_settings(text)
    expectation = merged(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), values)["config"]
    assert list(settings.scheduler_names) == expectation["schedulerNames"]
    for deployment in workloads(manifests):
        pod = deployment["spec"]["template"]
        (mount,) = [m for m in pod["spec"]["containers"][0]["volumeMounts"] if m["name"] == "config"]
        assert f"--config={mount['mountPath']}/config.yaml" in pod["spec"]["containers"][0]["args"]
        assert {"name": "config", "configMap": {"name": manifests.configuration()}} in pod["spec"]["volumes"]


def test_a_changed_configuration_restarts_both_processes(chart: Chart, manifests: Rendered) -> None:
    changed_manifests = chart.render({"config": {"binding": {"workers": 8}}})
    assert changed_manifests.configuration() != manifests.configuration()
    for before, after in zip(workloads(manifests), workloads(changed_manifests), strict=True):
        assert before["spec"]["template"] != after["spec"]["template"]
    assert chart.render({"log": {"level": "debug"}}).configuration() == manifests.configuration()
    name, digest = manifests.configuration().rsplit("-", 1)
    assert (name, digest) == (
        "bowline-config",
        hashlib.sha256(manifests.config_text().strip().encode()).hexdigest()[:10],
    )
    assert manifests.get("ConfigMap", manifests.configuration())["immutable"] is True


# --- several releases ---


def selectors(manifests: Rendered) -> list[dict[str, str]]:
    match_labels: list[dict[str, str]] = [
        o["spec"]["selector"]["matchLabels"] for o in manifests.of_kind("Deployment")
    ]
    match_labels += [o["spec"]["selector"] for o in manifests.of_kind("Service")]
    return match_labels + [o["spec"]["selector"]["matchLabels"] for o in manifests.of_kind("PodDisruptionBudget")]


def test_two_charts_of_one_release_select_no_pods_of_each_other(chart: Chart) -> None:
    """As aliases of a parent chart: distinguished by their names. One alias has what a cluster has once."""
    values = {"crds": {"enabled": False}, "config": {"plugins": {"gpu_sharing": {"enabled": False}}}}
    renderings = (chart.render({"fullnameOverride": name, **values}, release="platform") for name in ("one", "other"))
    alias, other_alias = renderings
    assert not alias.by_kind.keys() & other_alias.by_kind.keys(), "Helm would create none of them twice"
    for here, there in ((alias, other_alias), (other_alias, alias)):
        pods: list[Any] = [o["spec"]["template"]["metadata"]["labels"] for o in there.of_kind("Deployment")]
        assert not [s for s in selectors(here) for labels in pods if s.items() <= labels.items()]


def test_a_name_that_is_the_releases_own_changes_no_selector(chart: Chart) -> None:
    """A release with dots in its name has objects with dashes; to give that name must not prevent an upgrade."""
    without, override = (chart.render(values, release="my.rel") for values in ({}, {"fullnameOverride": "my-rel"}))
    assert selectors(override) == selectors(without)


def test_no_object_depends_on_the_version() -> None:
    """So `test_objects_live` needs only the oldest and the newest version of Kubernetes."""
    templates = (CHART / "templates").rglob("*.*")
    assert [path for path in templates if "KubeVersion" in path.read_text(encoding="utf-8")] == []


def test_the_values_of_the_example_scheduler_grant_what_the_example_grants() -> None:
    def rules(objects: Iterator[Any]) -> Any:
        return next(obj["rules"] for obj in objects if isinstance(obj, dict) and obj["kind"] == "ClusterRole")

    example = CHART.parents[1] / "examples" / "scheduler"
    preset = yaml.safe_load((example / "values.yaml").read_text(encoding="utf-8"))
    granted = rules(yaml.safe_load_all((example / "rbac.yaml").read_text(encoding="utf-8")))
    assert rules(iter(preset["extraObjects"])) == granted
