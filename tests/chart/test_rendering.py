"""The rendered objects by values: names, presets, and the invariants under all of them."""

import hashlib
from typing import Any

import pytest
import yaml

from bowline.framework.config import parse_settings
from bowline_cli.reading import info_of
from bowline_reconciler.process import MOMENT, WORK
from bowline_webhook.bodies import MAX_TIMEOUT_S
from bowline_webhook.options import parse_options
from tests.chart.presets import LOCAL, PRESETS
from tests.chart.rendering import CHART, NAMESPACE, Chart, Rendered, merged

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


def test_selectors_of_a_release_without_an_override_do_not_change(manifests: Rendered) -> None:
    """A Deployment's selector cannot be changed: with another one no upgrade would be possible."""
    for selector in selectors(manifests):
        component = selector["app.kubernetes.io/component"]
        assert selector == {
            "app.kubernetes.io/name": "bowline",
            "app.kubernetes.io/instance": "bowline",
            "app.kubernetes.io/component": component,
        }


def test_a_name_that_is_the_releases_own_changes_no_selector(chart: Chart) -> None:
    """A release with dots in its name has objects with dashes; to give that name must not prevent an upgrade."""
    without, override = (chart.render(values, release="my.rel") for values in ({}, {"fullnameOverride": "my-rel"}))
    assert selectors(override) == selectors(without)


def test_the_namespace_of_reservations_admits_restricted_pods_only(manifests: Rendered) -> None:
    labels = manifests.get("Namespace", "kai-resource-reservation")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_secret_of_the_ca_is_rendered_without_data(manifests: Rendered) -> None:
    secret = manifests.get("Secret", "bowline-ca")
    assert secret["type"] == "Opaque"
    assert not {"data", "stringData", "immutable"} & set(secret)
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


# --- single values ---


def test_the_crd_is_the_generated_one_and_survives_an_uninstall(chart: Chart, manifests: Rendered) -> None:
    crd = manifests.get("CustomResourceDefinition", "bindrequests.scheduling.run.ai")
    definition = yaml.safe_load((CHART / "files" / "bindrequests.yaml").read_text(encoding="utf-8"))
    assert crd["spec"] == definition["spec"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not chart.render({"crds": {"enabled": False}}).of_kind("CustomResourceDefinition")


IMAGES = [
    pytest.param({}, "registry.example/bowline:0.1.0", id="the chart's version is the tag"),
    pytest.param({"tag": "v2"}, "registry.example/bowline:v2", id="a given tag"),
    pytest.param({"registry": "", "pullPolicy": "Never"}, "bowline:0.1.0", id="an image on the nodes"),
    pytest.param({"registry": "r.example:5000/team"}, "r.example:5000/team/bowline:0.1.0", id="a registry"),
    pytest.param({"registry": "", "tag": "v2", "digest": "sha256:" + "a" * 64}, "bowline@sha256:" + "a" * 64,
        id="a digest has priority over the tag"),
]  # fmt: skip


@pytest.mark.parametrize(("image", "reference"), IMAGES)
def test_image_reference(chart: Chart, image: dict[str, Any], reference: str) -> None:
    for deployment in workloads(chart.render({"image": image})):
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == reference


@pytest.mark.parametrize(
    ("tls", "secret"),
    [
        pytest.param({"mode": "secret", "secretName": "serving-cert"}, "serving-cert", id="one's own"),
        pytest.param({"mode": "cert-manager", "secretName": "x"}, "x", id="from cert-manager, with a name"),
        pytest.param({"mode": "cert-manager"}, "bowline-webhook-tls", id="from cert-manager"),
    ],
)
def test_a_given_certificate_is_mounted(chart: Chart, tls: dict[str, str], secret: str) -> None:
    manifests = chart.render({"webhook": {"tls": tls}})
    pod = manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "tls"]
    arguments = pod["containers"][0]["args"]
    assert f"--tls-cert-file={mount['mountPath']}/tls.crt" in arguments
    assert f"--tls-private-key-file={mount['mountPath']}/tls.key" in arguments
    assert not [a for a in arguments if a.startswith(("--ca-secret", "--service-name", "--webhook-configuration"))]
    assert {"name": "tls", "secret": {"secretName": secret}} in pod["volumes"]


def test_cert_manager_makes_the_certificate_and_publishes_its_ca(chart: Chart) -> None:
    manifests = chart.render({"webhook": {"tls": {"mode": "cert-manager"}, "annotations": {"a": "b"}}})
    (leaf, authority) = (
        manifests.get("Certificate", name)["spec"] for name in ("bowline-webhook", "bowline-webhook-ca")
    )
    assert f"bowline-webhook.{NAMESPACE}.svc" in leaf["dnsNames"]
    assert leaf["secretName"] == "bowline-webhook-tls"
    assert authority["isCA"] is True
    issuer = manifests.get("Issuer", leaf["issuerRef"]["name"])
    assert issuer["spec"] == {"ca": {"secretName": authority["secretName"]}}
    assert manifests.get("Issuer", authority["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
    for configuration in manifests.of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert configuration["metadata"]["annotations"] == {
            "a": "b",
            "admissions.enforcer/disabled": "true",
            "cert-manager.io/inject-ca-from": f"{NAMESPACE}/bowline-webhook",
        }


def test_cert_manager_uses_the_given_issuer(chart: Chart) -> None:
    issuer = {"name": "corporate", "kind": "ClusterIssuer"}
    manifests = chart.render({"webhook": {"tls": {"mode": "cert-manager", "issuerRef": issuer}}})
    assert not manifests.of_kind("Issuer")
    (leaf,) = manifests.of_kind("Certificate")
    assert leaf["spec"]["issuerRef"] == {**issuer, "group": "cert-manager.io"}


def test_only_callers_with_certificates_of_the_given_cas_and_names_are_accepted(
    chart: Chart, manifests: Rendered
) -> None:
    tls = {"clientCASecret": "callers", "clientAllowedNames": ["kube-apiserver", "front: 1"]}
    pod = chart.render({"webhook": {"tls": tls}}).get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "client-ca"]
    flags = ("--client-ca-file", "--client-allowed-name")
    assert [arg for arg in pod["containers"][0]["args"] if arg.startswith(flags)] == [
        f"--client-ca-file={mount['mountPath']}/ca.crt",
        *(f"--client-allowed-name={name}" for name in tls["clientAllowedNames"]),
    ]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "client-ca"]
    assert volume["secret"] == {"secretName": "callers", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert not [arg for arg in container(manifests, "bowline-webhook")["args"] if arg.startswith(flags)]


def test_accounts_mount_no_token_by_themselves(manifests: Rendered) -> None:
    assert [o["automountServiceAccountToken"] for o in manifests.of_kind("ServiceAccount")] == [False] * 4


def test_a_rollout_and_a_drain_leave_a_webhook_that_answers(chart: Chart, manifests: Rendered) -> None:
    strategy = manifests.get("Deployment", "bowline-webhook")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    pod = manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]
    drain = parse_options([], {}).drain
    assert pod["terminationGracePeriodSeconds"] > drain.total_seconds() + MAX_TIMEOUT_S + 10
    assert manifests.get("PodDisruptionBudget", "bowline-webhook")["spec"]["maxUnavailable"] == 1
    # Replicas that serve no call do not prevent a drain of their nodes.
    budget = manifests.get("PodDisruptionBudget", "bowline-webhook")["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert not chart.render(LOCAL).of_kind("PodDisruptionBudget")


def test_the_grace_period_covers_the_reconcilers_stop(manifests: Rendered) -> None:
    pod = manifests.get("Deployment", "bowline-reconciler")["spec"]["template"]["spec"]
    steps = WORK + 2 * MOMENT
    assert pod["terminationGracePeriodSeconds"] > steps.total_seconds()


@pytest.mark.parametrize("enabled", [True, False])
def test_users_may_read_whether_volumes_are_bound(chart: Chart, enabled: bool) -> None:
    manifests = chart.render({"config": {"plugins": {"volume_binding": {"enabled": enabled}}}})
    info = info_of(manifests.get("ConfigMap", "bowline-info"))
    assert info is not None
    assert info.binds_volumes is enabled
