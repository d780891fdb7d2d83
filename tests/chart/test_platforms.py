"""Values of a platform: contexts, plugins, labels, accounts, availability, network, registry, volumes; null."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from tests.chart.rendering import CHART, NAMESPACE, Chart, Rendered

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
OPENSHIFT = CHART / "presets" / "openshift.yaml"
PROCESSES = ("webhook", "reconciler")


def pods(manifests: Rendered) -> list[Any]:
    """The pod templates of all Deployments and Jobs, and the pod of `helm test`."""
    owners = manifests.of_kind("Deployment", "Job")
    return [*(owner["spec"]["template"] for owner in owners), *manifests.of_kind("Pod")]


def deployment(manifests: Rendered, process: str) -> Any:
    return manifests.get("Deployment", f"bowline-{process}")["spec"]


def plugins(manifests: Rendered) -> dict[str, Any]:
    """The plugins of the rendered configuration, by name; each once."""
    entries = yaml.safe_load(manifests.config_text())["plugins"]
    by_name = {plugin["name"]: plugin for plugin in entries}
    assert len(by_name) == len(entries)
    return by_name


# --- security contexts ---


def test_security_contexts_are_those_of_the_values_also_in_reservation_pods(chart: Chart) -> None:
    contexts = {"podSecurityContext": {"runAsUser": 7}, "containerSecurityContext": {"runAsNonRoot": True}}
    manifests = chart.render(contexts)
    for template in pods(manifests):
        assert template["spec"]["securityContext"] == VALUES["podSecurityContext"] | {"runAsUser": 7}
        for container in template["spec"]["containers"]:
            assert container["securityContext"] == VALUES["containerSecurityContext"] | {"runAsNonRoot": True}
    arguments = plugins(manifests)["gpu_sharing"]["args"]
    assert arguments["reservationPodSecurityContext"]["runAsUser"] == 7
    assert arguments["reservationContainerSecurityContext"]["runAsNonRoot"] is True


def test_a_platform_may_choose_users_itself(chart: Chart) -> None:
    openshift = chart.render(files=[OPENSHIFT])
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert [template["spec"]["securityContext"] for template in pods(openshift)] == [context] * 5
    assert plugins(openshift)["gpu_sharing"]["args"]["reservationPodSecurityContext"] == context
    none = chart.render({"podSecurityContext": None, "containerSecurityContext": None})
    for template in pods(none):
        assert "securityContext" not in template["spec"]
        assert not [container for container in template["spec"]["containers"] if "securityContext" in container]
    arguments = plugins(none)["gpu_sharing"]["args"]
    assert arguments["reservationPodSecurityContext"] == arguments["reservationContainerSecurityContext"] == {}


def test_the_contexts_of_reservation_pods_are_the_plugins_defaults(manifests: Rendered) -> None:
    arguments = plugins(manifests)["gpu_sharing"]["args"]
    default = GpuSharingConfig(reservation_priority_class_name="bowline-shares")
    assert GpuSharingConfig.model_validate(arguments) == default


# --- plugins ---


def test_plugins_of_several_files_combine_and_a_list_replaces_them(chart: Chart, tmp_path: Path) -> None:
    mine: dict[str, Any] = {
        "node_fit": {"enabled": True},
        "gpu_sharing": {
            "args": {"scaleAdjustNamespace": "a", "reservationPodSecurityContext": {"runAsNonRoot": True}}
        },
    }
    team = {"licence": {"args": {"server": "b"}}, "node_fit": {"enabled": False}}
    files = [OPENSHIFT]
    for name, given in (("mine", mine), ("team", team), ("list", [{"name": "checks"}])):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump({"config": {"plugins": given}}))
    by_name = plugins(chart.render(files=files[:3]))
    assert by_name["node_fit"] == {"name": "node_fit", "enabled": False}
    assert by_name["licence"] == {"name": "licence", "args": {"server": "b"}}
    # A context is one argument, which is replaced as a whole.
    arguments = by_name["gpu_sharing"]["args"]
    assert {name: arguments[name] for name in mine["gpu_sharing"]["args"]} == mine["gpu_sharing"]["args"]
    as_list = plugins(chart.render(files=files))
    assert set(as_list) == {"checks", "gpu_sharing"}
    assert "scaleAdjustNamespace" not in as_list["gpu_sharing"]["args"]


def test_values_of_the_reservation_are_arguments_that_the_plugins_own_precede(chart: Chart) -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
    values = {"reservation": {"priorityClassName": "gpu", "resources": resources}}
    manifests = chart.render(values)
    given = {
        "reservationPriorityClassName": "gpu",
        "reservationRequests": {"cpu": "1"},
        "reservationLimits": {"memory": "1Gi"},
    }
    arguments = plugins(manifests)["gpu_sharing"]["args"]
    assert {name: arguments[name] for name in given} == given
    policy = manifests.get("ValidatingAdmissionPolicy", "bowline-reconciler-pods")
    assert "object.spec.priorityClassName == 'gpu'" in yaml.safe_dump(policy, width=10**6)
    own: dict[str, Any] = {"enabled": True, "args": {"reservationPriorityClassName": "own"}}
    plugin = plugins(chart.render({**values, "config": {"plugins": {"gpu_sharing": own}}}))["gpu_sharing"]
    assert plugin["enabled"] is True
    assert {name: plugin["args"][name] for name in own["args"]} == own["args"]


# --- labels, nodes and volumes of every pod ---


def test_common_labels_are_on_every_object_and_pod_and_in_no_selector(chart: Chart, manifests: Rendered) -> None:
    labels = {"team": "gpu", "sidecar.istio.io/inject": "false"}
    labelled = chart.render({"commonLabels": labels})
    for obj in labelled.objects:
        assert labels.items() <= obj["metadata"]["labels"].items(), (obj["kind"], obj["metadata"]["name"])
    assert all(labels.items() <= template["metadata"]["labels"].items() for template in pods(labelled))
    for process in PROCESSES:
        assert deployment(labelled, process)["selector"] == deployment(manifests, process)["selector"]


def test_every_pod_is_where_the_values_put_it(chart: Chart) -> None:
    values: dict[str, Any] = {
        "nodeSelector": {"pool": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "system-cluster-critical",
    }
    templates = pods(chart.render(values))
    assert len(templates) == 5
    for template in templates:
        assert {key: template["spec"][key] for key in ("nodeSelector", "tolerations", "priorityClassName")} == {
            key: values[key] for key in ("nodeSelector", "tolerations", "priorityClassName")
        }
        assert template["spec"]["affinity"]["podAntiAffinity"] == {}


def test_extra_volumes_and_variables_are_in_both_processes_and_in_their_jobs(chart: Chart) -> None:
    volume = {"name": "ca", "configMap": {"name": "corporate-ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ssl/corporate", "readOnly": True}
    variable = {"name": "A", "value": "b"}
    values = {
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
        "extraEnv": [variable],
        "podAnnotations": {"a": "b"},
    }
    manifests = chart.render(values)
    for template in (owner["spec"]["template"] for owner in manifests.of_kind("Deployment", "Job")):
        assert template["spec"]["volumes"].count(volume) == 1
        assert all(mount in container["volumeMounts"] for container in template["spec"]["containers"])
        assert all(container["env"].count(variable) == 1 for container in template["spec"]["containers"])
    for process in PROCESSES:
        assert deployment(manifests, process)["template"]["metadata"]["annotations"] == {"a": "b"}


def test_extra_objects_are_part_of_the_release(chart: Chart) -> None:
    secret_store = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}}
    labels = '{{ include "bowline.labels" . | fromYaml | toJson }}'
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b, labels: {labels}}}"
    manifests = chart.render({"extraObjects": [secret_store, text]})
    assert manifests.get("ConfigMap", "bowline-a")["metadata"] == {"name": "bowline-a"}
    assert manifests.get("ConfigMap", "b")["metadata"]["labels"]["app.kubernetes.io/instance"] == "bowline"


# --- accounts ---


def test_every_reference_to_an_existing_account_has_its_name(chart: Chart, manifests: Rendered) -> None:
    """RBAC, pods, and the policies that restrict the reconciler's account."""
    renamed = chart.render({process: {"serviceAccountName": f"own-{process}"} for process in PROCESSES})
    created = {obj["metadata"]["name"] for obj in renamed.of_kind("ServiceAccount")}
    assert created == {"bowline-gpu-agent", "bowline-test"}
    for process in PROCESSES:
        assert deployment(renamed, process)["template"]["spec"]["serviceAccountName"] == f"own-{process}"
    job = renamed.get("Job", "bowline-uninstall")
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "own-reconciler"
    subjects = [list(subject_names(each)) for each in (renamed, manifests)]
    assert subjects[0] == [
        name.replace("bowline-webhook", "own-webhook").replace("bowline-reconciler", "own-reconciler")
        for name in subjects[1]
    ]
    user = f"system:serviceaccount:{NAMESPACE}:"
    policies = [
        yaml.safe_dump(each.of_kind("ValidatingAdmissionPolicy"), width=10**6) for each in (renamed, manifests)
    ]
    for process in PROCESSES:
        policies[1] = policies[1].replace(f"{user}bowline-{process}", f"{user}own-{process}")
    assert policies[0] == policies[1]
    assert f"{user}own-reconciler" in policies[0]


def subject_names(manifests: Rendered) -> Iterator[str]:
    for binding in manifests.of_kind("RoleBinding", "ClusterRoleBinding"):
        yield from (subject["name"] for subject in binding["subjects"])


# --- availability and network ---


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


def test_replicas_of_an_autoscaler_are_not_rendered(chart: Chart) -> None:
    for mode in ("Enforce", "Off"):
        values = {"webhook": {"replicas": None}, "reconciler": {"replicas": None}, "admission": {"mode": mode}}
        manifests = chart.render(values)
        assert ["replicas" in obj["spec"] for obj in manifests.of_kind("Deployment")] == [False, False]


def test_the_webhook_on_the_network_of_its_node(chart: Chart, manifests: Rendered) -> None:
    assert not {"hostNetwork", "dnsPolicy"} & set(deployment(manifests, "webhook")["template"]["spec"])
    on_host = chart.render({"webhook": {"hostNetwork": True, "port": 10250, "metricsPort": 10251}})
    spec = deployment(on_host, "webhook")
    pod = spec["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert [port["containerPort"] for port in pod["containers"][0]["ports"]] == [10250, 10251]
    # A node has the ports of one replica.
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert "hostNetwork" not in deployment(on_host, "reconciler")["template"]["spec"]


PEERS = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def ingress(manifests: Rendered, name: str) -> list[tuple[str, Any]]:
    policy = manifests.get("NetworkPolicy", f"bowline-{name}")["spec"]
    assert policy["podSelector"] == deployment(manifests, name)["selector"]
    return [(rule["ports"][0]["port"], rule.get("from")) for rule in policy.get("ingress") or ()]


def test_a_network_policy_admits_only_the_given_peers(chart: Chart, manifests: Rendered) -> None:
    assert not manifests.of_kind("NetworkPolicy")
    without_peers = chart.render({"networkPolicy": {"enabled": True}})
    assert ingress(without_peers, "webhook") == [("https", None)]
    assert ingress(without_peers, "reconciler") == []
    assert [policy["spec"]["policyTypes"] for policy in without_peers.of_kind("NetworkPolicy")] == [["Ingress"]] * 2
    rule = {"to": PEERS, "ports": [{"port": 6443}]}
    policy_values = {"enabled": True, "apiServers": PEERS, "monitoring": MONITORING, "egress": [rule]}
    limited = chart.render({"networkPolicy": policy_values})
    assert ingress(limited, "webhook") == [("https", PEERS), ("metrics", MONITORING)]
    assert ingress(limited, "reconciler") == [("metrics", MONITORING)]
    assert [policy["spec"]["egress"] for policy in limited.of_kind("NetworkPolicy")] == [[rule], [rule]]
    assert [policy["spec"]["policyTypes"] for policy in limited.of_kind("NetworkPolicy")] == [
        ["Ingress", "Egress"]
    ] * 2


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
    assert [template["spec"]["imagePullSecrets"] for template in pods(manifests)] == [secrets] * 5
    assert manifests.get("ServiceAccount", "bowline-gpu-agent")["imagePullSecrets"] == secrets
