"""Values of a platform: security contexts, labels, accounts, rollout, network, registry, volumes, objects; null."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bowline.localcluster.errors import CommandError
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from tests.chart.rendering import CHART, NAMESPACE, Chart, Rendered, merged

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
PROCESSES = ("webhook", "reconciler")
VOLUME = {"name": "ca", "configMap": {"name": "corporate-ca"}}
MOUNT = {"name": "ca", "mountPath": "/etc/ssl/corporate", "readOnly": True}


def pods(manifests: Rendered) -> list[Any]:
    """The pod templates of all Deployments and Jobs."""
    return [owner["spec"]["template"] for owner in manifests.of_kind("Deployment", "Job")]


def deployment(manifests: Rendered, process: str) -> Any:
    return manifests.get("Deployment", f"bowline-{process}")["spec"]


# --- security contexts ---


def test_security_contexts_are_those_of_the_values(chart: Chart) -> None:
    contexts = {"podSecurityContext": {"runAsUser": 7}, "containerSecurityContext": {"runAsNonRoot": True}}
    for template in pods(chart.render(contexts)):
        assert template["spec"]["securityContext"] == VALUES["podSecurityContext"] | {"runAsUser": 7}
        for container in template["spec"]["containers"]:
            assert container["securityContext"] == VALUES["containerSecurityContext"] | {"runAsNonRoot": True}


def test_a_platform_may_choose_users_itself(chart: Chart) -> None:
    for template in pods(chart.render({"podSecurityContext": {"runAsUser": None, "runAsGroup": None}})):
        context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert template["spec"]["securityContext"] == context
    for template in pods(chart.render({"podSecurityContext": None, "containerSecurityContext": None})):
        assert "securityContext" not in template["spec"]
        assert not [container for container in template["spec"]["containers"] if "securityContext" in container]


# --- labels ---


def test_common_labels_are_on_every_object_and_pod_and_in_no_selector(chart: Chart, manifests: Rendered) -> None:
    labels = {"team": "gpu", "sidecar.istio.io/inject": "false"}
    labelled = chart.render({"commonLabels": labels})
    for obj in labelled.objects:
        assert labels.items() <= obj["metadata"]["labels"].items(), (obj["kind"], obj["metadata"]["name"])
    assert all(labels.items() <= template["metadata"]["labels"].items() for template in pods(labelled))
    for process in PROCESSES:
        assert deployment(labelled, process)["selector"] == deployment(manifests, process)["selector"]


@pytest.mark.parametrize("process", PROCESSES)
def test_labels_of_the_pods_of_one_process(chart: Chart, process: str) -> None:
    labelled = [
        template["metadata"]["labels"]["app.kubernetes.io/component"]
        for template in pods(chart.render({process: {"podLabels": {"a": "b"}}}))
        if template["metadata"]["labels"].get("a") == "b"
    ]
    assert labelled == [process]


# --- accounts ---


def test_every_reference_to_an_account_has_its_name(chart: Chart) -> None:
    """RBAC, pods, and the policies that restrict the reconciler's account."""
    account_values = {process: {"serviceAccount": {"name": f"own-{process}"}} for process in PROCESSES}
    renamed, default = chart.render(account_values), chart.render()
    for process in PROCESSES:
        own = ("ServiceAccount", f"own-{process}")
        assert own in renamed.by_kind
        assert deployment(renamed, process)["template"]["spec"]["serviceAccountName"] == own[1]
    job = renamed.get("Job", "bowline-uninstall")
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "own-reconciler"
    subjects = [list(subject_names(each)) for each in (renamed, default)]
    assert subjects[0] == [
        name.replace("bowline-webhook", "own-webhook").replace("bowline-reconciler", "own-reconciler")
        for name in subjects[1]
    ]
    user = f"system:serviceaccount:{NAMESPACE}:"
    policies = [yaml.safe_dump(each.of_kind("ValidatingAdmissionPolicy"), width=10**6) for each in (renamed, default)]
    for process in PROCESSES:
        policies[1] = policies[1].replace(f"{user}bowline-{process}", f"{user}own-{process}")
    assert policies[0] == policies[1]
    assert f"{user}own-reconciler" in policies[0]


def subject_names(manifests: Rendered) -> Iterator[str]:
    for binding in manifests.of_kind("RoleBinding", "ClusterRoleBinding"):
        yield from (subject["name"] for subject in binding["subjects"])


def test_an_existing_account_is_not_created(chart: Chart) -> None:
    accounts = {"create": False, "name": "theirs"}
    names = {
        o["metadata"]["name"]
        for o in chart.render({"webhook": {"serviceAccount": accounts}}).of_kind("ServiceAccount")
    }
    assert names == {"bowline-reconciler", "bowline-gpu-agent", "bowline-test"}


def test_annotations_of_accounts(chart: Chart) -> None:
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}
    manifests = chart.render({"reconciler": {"serviceAccount": {"annotations": annotations}}})
    assert manifests.get("ServiceAccount", "bowline-reconciler")["metadata"]["annotations"] == annotations
    assert "annotations" not in manifests.get("ServiceAccount", "bowline-webhook")["metadata"]


def test_two_processes_do_not_share_an_account(chart: Chart) -> None:
    values = {process: {"serviceAccount": {"create": False, "name": "one"}} for process in PROCESSES}
    with pytest.raises(CommandError, match=r"webhook\.serviceAccount\.name and reconciler\.serviceAccount\.name"):
        chart.render(values)


# --- rollout and availability ---


@pytest.mark.parametrize("process", PROCESSES)
def test_a_deployment_is_rolled_out_as_configured(chart: Chart, process: str) -> None:
    rolling = {"maxUnavailable": "50%", "maxSurge": 0}
    values = {process: {"rollingUpdate": rolling, "minReadySeconds": 5, "revisionHistoryLimit": 0}}
    spec = deployment(chart.render(values), process)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert (spec["minReadySeconds"], spec["revisionHistoryLimit"]) == (5, 0)


def test_each_process_with_replicas_has_a_disruption_budget(chart: Chart) -> None:
    def budgets(**replicas: int | None) -> dict[str, str]:
        manifests = chart.render({process: {"replicas": number} for process, number in replicas.items()})
        return {
            o["metadata"]["name"]: o["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
            for o in manifests.of_kind("PodDisruptionBudget")
        }

    both = {f"bowline-{process}": process for process in PROCESSES}
    assert budgets() == budgets(webhook=None, reconciler=None) == both
    assert budgets(webhook=1) == {"bowline-reconciler": "reconciler"}
    assert budgets(reconciler=1) == {"bowline-webhook": "webhook"}


def test_an_autoscaler_owns_the_replicas_of_the_webhook(chart: Chart) -> None:
    manifests = chart.render({"webhook": {"replicas": 1, "autoscaling": {"enabled": True, "minReplicas": 3}}})
    scaler = manifests.get("HorizontalPodAutoscaler", "bowline-webhook")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 6)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bowline-webhook"}
    assert "replicas" not in deployment(manifests, "webhook")
    assert ("PodDisruptionBudget", "bowline-webhook") in manifests.by_kind
    off = chart.render({"webhook": {"autoscaling": {"enabled": True}}, "admission": {"mode": "Off"}})
    assert not off.of_kind("HorizontalPodAutoscaler")
    assert "replicas" not in deployment(off, "webhook"), "another manager owns the field"


def test_an_autoscaler_has_a_range(chart: Chart) -> None:
    with pytest.raises(CommandError, match=r"maxReplicas must not be less than"):
        chart.render({"webhook": {"autoscaling": {"enabled": True, "minReplicas": 7}}})


# --- network ---


def test_the_webhook_on_the_network_of_its_node(chart: Chart, manifests: Rendered) -> None:
    assert not {"hostNetwork", "dnsPolicy"} & set(deployment(manifests, "webhook")["template"]["spec"])
    on_host = chart.render({"webhook": {"hostNetwork": True, "port": 10250, "metricsPort": 10251}})
    pod = deployment(on_host, "webhook")["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "hostNetwork" not in deployment(on_host, "reconciler")["template"]["spec"]
    pod = deployment(chart.render({"webhook": {"dnsPolicy": "Default"}}), "webhook")["template"]["spec"]
    assert pod["dnsPolicy"] == "Default"


def test_annotations_of_the_webhooks_service(chart: Chart) -> None:
    manifests = chart.render({"webhook": {"serviceAnnotations": {"a": "b"}}})
    assert manifests.get("Service", "bowline-webhook")["metadata"]["annotations"] == {"a": "b"}


# --- registry ---


def test_a_parent_charts_registry_is_used_for_every_image(chart: Chart) -> None:
    manifests = chart.render({"global": {"imageRegistry": "mirror.example", "other": "chart"}})
    images = {c["image"] for template in pods(manifests) for c in template["spec"]["containers"]}
    assert images == {"mirror.example/bowline:0.1.0"}
    assert yaml.safe_load(manifests.config_text())["gpuSharing"]["agentImage"] in images
    assert "registry.example/" not in yaml.safe_dump_all(manifests.objects)
    without = chart.render({"image": {"registry": ""}, "global": {"imageRegistry": "mirror.example"}})
    assert without.config_text() == manifests.config_text()


def test_pull_secrets_of_the_image_and_of_a_parent_chart(chart: Chart) -> None:
    values = {"image": {"pullSecrets": [{"name": "a"}]}, "global": {"imagePullSecrets": ["b", {"name": "c"}, "a"]}}
    secrets = [{"name": name} for name in "abc"]
    manifests = chart.render(values)
    assert [template["spec"]["imagePullSecrets"] for template in pods(manifests)] == [secrets] * len(pods(manifests))
    assert manifests.get("ServiceAccount", "bowline-gpu-agent")["imagePullSecrets"] == secrets
    own = chart.render({**values, "reservation": {"pullSecrets": [{"name": "d"}]}})
    assert own.get("ServiceAccount", "bowline-gpu-agent")["imagePullSecrets"] == [{"name": "d"}]


# --- reservation pods ---


def test_values_of_reservation_pods_are_arguments_of_their_plugin(chart: Chart) -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
    values = {"serviceAccountName": "agents", "priorityClassName": "gpu", "resources": resources}
    manifests = chart.render({"reservation": values})
    (plugin,) = yaml.safe_load(manifests.config_text())["plugins"]
    assert plugin["name"] == "gpu_sharing"
    expectation = {
        "reservationServiceAccount": "agents",
        "reservationPriorityClassName": "gpu",
        "reservationRequests": {"cpu": "1"},
        "reservationLimits": {"memory": "1Gi"},
    }
    assert {name: plugin["args"][name] for name in expectation} == expectation
    GpuSharingConfig.model_validate(plugin["args"])
    assert manifests.get("ServiceAccount", "agents")["metadata"]["namespace"] == "kai-resource-reservation"
    (policy,) = (
        o for o in manifests.of_kind("ValidatingAdmissionPolicy") if o["metadata"]["name"].endswith("er-pods")
    )
    assert "object.spec.priorityClassName == 'gpu'" in yaml.safe_dump(policy, width=10**6)


def test_an_argument_of_the_plugin_precedes_a_value_of_the_reservation(chart: Chart) -> None:
    own: dict[str, Any] = {
        "name": "gpu_sharing",
        "enabled": True,
        "args": {"reservationPriorityClassName": "own", "reservationLimits": {}},
    }
    values = {"reservation": {"priorityClassName": "gpu"}, "config": {"plugins": [own, {"name": "node_fit"}]}}
    node_fit, plugin = yaml.safe_load(chart.render(values).config_text())["plugins"]
    assert node_fit == {"name": "node_fit"}
    assert plugin["enabled"] is True
    assert plugin["args"].items() >= own["args"].items()


# --- volumes and objects ---


def test_extra_volumes_are_mounted_in_the_process_and_in_its_jobs(chart: Chart) -> None:
    extra = {"extraVolumes": [VOLUME], "extraVolumeMounts": [MOUNT]}
    manifests = chart.render(dict.fromkeys(PROCESSES, extra))
    for template in pods(manifests):
        assert template["spec"]["volumes"].count(VOLUME) == 1
        assert all(MOUNT in container["volumeMounts"] for container in template["spec"]["containers"])
    only = chart.render({"reconciler": extra})
    assert VOLUME not in deployment(only, "webhook")["template"]["spec"]["volumes"]
    check = only.get("Job", "bowline-check")["spec"]["template"]["spec"]["containers"]
    assert [MOUNT in container["volumeMounts"] for container in check] == [False, True]


def test_extra_objects_are_part_of_the_release(chart: Chart) -> None:
    secret_store = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}}
    labels = '{{ include "bowline.labels" . | fromYaml | toJson }}'
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b, labels: {labels}}}"
    manifests = chart.render({"extraObjects": [secret_store, text]})
    assert manifests.get("ConfigMap", "bowline-a")["metadata"] == {"name": "bowline-a"}
    assert manifests.get("ConfigMap", "b")["metadata"]["labels"]["app.kubernetes.io/instance"] == "bowline"


# --- null ---

# Whose null means that the chart sets nothing, as an empty list or text does.
MAY_BE_NULL = {
    *(
        "commonLabels",
        "podSecurityContext",
        "containerSecurityContext",
        "annotations",
        "labels",
        "serviceAnnotations",
    ),
    *("podAnnotations", "podLabels", "matchLabels", "nodeSelector", "affinity", "resources", "rollingUpdate"),
    *("probes", "plugins", "alertLabels", "podSecurity", "replicas", "minReadySeconds", "revisionHistoryLimit"),
    *("gpuSharing", "namespaces", "binding", "leaderElection", "featureGates"),
}
MONITORED = {"monitoring": {part: {"enabled": True} for part in ("service", "podMonitor", "rules", "dashboard")}}


def value_paths(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Each value of the chart itself, and whether it may be null: what is below ``config`` is the processes' own."""
    for key, value in values.items():
        yield (*path, key), value in ("", []) or isinstance(value, list) or key in MAY_BE_NULL
        if isinstance(value, dict) and key != "config" and key not in MAY_BE_NULL:
            yield from value_paths(value, (*path, key))


def with_null(*paths: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = merged({"networkPolicy": {"enabled": True}}, MONITORED)
    for path in paths:
        null: Any = None
        for key in reversed(path):
            null = {key: null}
        values = merged(values, null)
    return values


def nulls(value: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Each null in objects or in a line of a text, such as a configuration; ``<nil>`` is a template's."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from nulls(item, (*path, key))
    elif value is None:
        yield path
    elif isinstance(value, str):
        yield from ((*path, line) for line in value.splitlines() if "<nil>" in line or line.endswith(": null"))


PATHS = list(value_paths(VALUES))


@pytest.mark.parametrize("path", [pytest.param(path, id=".".join(path)) for path, may in PATHS if may])
def test_null_sets_nothing(chart: Chart, path: tuple[str, ...]) -> None:
    objects = [obj for obj in chart.render(with_null(path)).objects if obj["kind"] != "CustomResourceDefinition"]
    assert list(nulls(objects)) == []


NEEDED = [path for path, may in PATHS if not may]


@pytest.mark.parametrize("depth", sorted({len(path) for path in NEEDED}))
def test_null_is_an_error_where_the_chart_needs_a_value(chart: Chart, depth: int) -> None:
    """Helm removes a key whose value is null: a template would meet a section that does not exist.

    One message lists all of them, except those in a section that is itself null.
    """
    paths = [path for path in NEEDED if len(path) == depth]
    with pytest.raises(CommandError) as refusal:
        chart.render(with_null(*paths))
    missing = {
        (*filter(None, place.split("/")), key)
        for place, keys in re.findall(r"at '([^']*)': missing propert(?:y|ies) (.*)", str(refusal.value))
        for key in re.findall(r"'([^']+)'", keys)
    }
    assert [path for path in paths if path not in missing] == []
