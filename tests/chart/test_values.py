"""Which value changes what: of each row the values, and what is at paths of the rendered objects.

An object is named by kind and name, or by a word of `selected`; None: it is not rendered.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from bowline_reconciler.process import MOMENT, WORK
from bowline_webhook.bodies import MAX_TIMEOUT_S
from bowline_webhook.options import parse_options
from tests.chart.presets import EVERYTHING, LOCAL
from tests.chart.rendering import CHART, NAMESPACE, Chart, Rendered, merged

PROCESSES = ("webhook", "reconciler")
Expectation = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Has:
    """A mapping with these entries, a list with these items, or what has this text in it."""

    parts: Any

    __hash__ = None  # type: ignore[assignment]  # it equals many

    def __eq__(self, other: object) -> bool:
        if isinstance(self.parts, str):
            return any(self.parts in text for text in texts(other))
        if isinstance(self.parts, dict):
            return isinstance(other, dict) and self.parts.items() <= other.items()
        return isinstance(other, list) and all(part in other for part in self.parts)


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a value."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(part)


def at(value: Any, path: str) -> Any:
    """Return what is at a path: keys, and items of lists by their index or name; None if it is absent."""
    for in_brackets, key in re.findall(r"\[([^\]]+)\]|([^.\[\]]+)", path):
        step = in_brackets or key
        if isinstance(value, list):
            items = value[int(step) :] if step.isdigit() else [item for item in value if item.get("name") == step]
            value = items[0] if items else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def selected(manifests: Rendered, word: str) -> list[Any]:
    """Return the objects of a word; `[None]` if none is rendered."""
    templates = {o["metadata"]["name"]: o["spec"]["template"] for o in manifests.of_kind("Deployment", "Job")}
    if word in PROCESSES:
        return [templates[f"bowline-{word}"]]
    if word in ("processes and jobs", "pods"):
        assert len(templates) == 4
        return [*templates.values(), *(manifests.of_kind("Pod") if word == "pods" else ())]
    if word == "config":
        return [yaml.safe_load(manifests.config_text())]
    kinds, _, name = word.partition("/")
    objects = manifests.objects if word == "all" else manifests.of_kind(*kinds.split(","))
    return [obj for obj in objects if name in ("", obj["metadata"]["name"])] or [None]


def contexts(pod: Any, container: Any) -> Expectation:
    """The security contexts of all pods, those of reservation pods included."""
    arguments = {"reservationPodSecurityContext": pod or {}, "reservationContainerSecurityContext": container or {}}
    return {
        "pods": {"spec.securityContext": pod, "spec.containers[0].securityContext": container},
        "config": {f"plugins[gpu_sharing].args.{key}": value for key, value in arguments.items()},
    }


def image(reference: str) -> Expectation:
    """The image of all pods, that of the agent included, which the policy of reservation pods admits."""
    repository = reference.partition("@")[0].removesuffix(":0.1.0").removesuffix(":v2")
    return {
        "pods": {"spec.containers[0].image": reference},
        "config": {"gpuSharing.agentImage": reference},
        "ValidatingAdmissionPolicy/bowline-reconciler-pods": {"spec": Has(f'["{repository}"].exists')},
    }


def network(webhook: Any, reconciler: Any, egress: Any) -> Expectation:
    """The NetworkPolicies: the ingress of each process, and the egress of all pods that connect to the API server."""
    types = ["Ingress", "Egress"] if egress else ["Ingress"]
    both = {"NetworkPolicy": {"spec.egress": egress, "spec.policyTypes": types}}
    labels = {"app.kubernetes.io/name": "bowline", "app.kubernetes.io/instance": "bowline"}
    components = {"webhook": ["webhook"], "reconciler": ["reconciler", "uninstall", "test"]}
    key = {"key": "app.kubernetes.io/component", "operator": "In"}
    return both | {
        f"NetworkPolicy/bowline-{process}": {"spec.ingress": ingress, "spec.podSelector":
            {"matchLabels": labels, "matchExpressions": [key | {"values": components[process]}]}}
        for process, ingress in (("webhook", webhook), ("reconciler", reconciler))
    }  # fmt: skip


def ingress(port: str, peers: Any = None) -> dict[str, Any]:
    return {"ports": [{"port": port}]} | ({"from": peers} if peers else {})


CHART_VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
POD_CONTEXT, CONTAINER_CONTEXT = CHART_VALUES["podSecurityContext"], CHART_VALUES["containerSecurityContext"]
PEERS = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
EGRESS = {"to": PEERS, "ports": [{"port": 6443}]}
PLACE: dict[str, Any] = {
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "priorityClassName": "system-cluster-critical",
}
VOLUME, MOUNT = {"name": "ca", "configMap": {"name": "a"}}, {"name": "ca", "mountPath": "/ca", "readOnly": True}
LABELS = {"team": "gpu", "sidecar.istio.io/inject": "false"}
COMPONENT = "app.kubernetes.io/component"
RESOURCES = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
RESERVATION = {"reservation": {"priorityClassName": "gpu", "resources": RESOURCES}}
OWN_CLASS = {"gpu_sharing": {"enabled": True, "args": {"reservationPriorityClassName": "own"}}}
DIGEST = "sha256:" + "a" * 64
MIRROR = {"imageRegistry": "mirror.example"}
HOOKS = "MutatingWebhookConfiguration,ValidatingWebhookConfiguration"
DENYING = f"{HOOKS},ValidatingAdmissionPolicy,ValidatingAdmissionPolicyBinding"
ACTIONS = "spec.validationActions"
WITH_FAIL = {"config": {"plugins": [{"name": "device_access"}]}}
WARNED: dict[str, dict[str, Any]] = {f"ValidatingAdmissionPolicyBinding/bowline-{name}": {ACTIONS: ["Warn", "Audit"]}
    for name in ("pods", "devices", "share-configmaps")}  # fmt: skip
# A stolen token gives no additional rights.
WARN: Expectation = WARNED | {"config": {"admission.mode": "Warn"},
    "ValidatingAdmissionPolicyBinding/bowline-reconciler-pods": {ACTIONS: ["Deny"]}}  # fmt: skip
OFF: Expectation = {DENYING: {"": None}, "config": {"admission.mode": "Off"}, "Deployment": {"kind": "Deployment"}}


def process(name: str) -> Mapping[str, Any]:
    """What the pods of a process have: identity, probes, configuration, and a spread over nodes of their own."""
    container, labels = "spec.containers[0]", {"app.kubernetes.io/name": "bowline", COMPONENT: name}
    return {
        f"{container}.env[POD_UID].valueFrom.fieldRef.fieldPath": "metadata.uid",
        f"{container}.readinessProbe.httpGet": {"path": "/readyz", "port": "metrics"},
        f"{container}.startupProbe.failureThreshold": 120,  # of a second each
        f"{container}.volumeMounts[config].readOnly": True,
        "spec.topologySpreadConstraints[0].labelSelector.matchLabels": Has(labels),
    }


def tls(secret: str) -> Expectation:
    """A given certificate in the webhook."""
    files = [f"--tls-cert-file={TLS_FOLDER}/tls.crt", f"--tls-private-key-file={TLS_FOLDER}/tls.key"]
    mount = "spec.containers[0].volumeMounts[tls].mountPath"
    secret_name = "spec.volumes[tls].secret.secretName"
    return {"webhook": {"spec.containers[0].args": Has(files), mount: TLS_FOLDER, secret_name: secret}}


TLS_FOLDER, CLIENT_FOLDER = "/etc/bowline-tls", "/etc/bowline-client-ca"
CERT_MANAGER = {"webhook": {"tls": {"mode": "cert-manager"}, "annotations": {"a": "b"}}}
ISSUER = {"name": "corporate", "kind": "ClusterIssuer"}
ROWS: dict[str, tuple[dict[str, Any], Expectation]] = {
    "nothing given": ({}, {
        "Namespace/kai-resource-reservation": {"metadata.labels[pod-security.kubernetes.io/enforce]": "restricted"},
        "Secret/bowline-ca": {"type": "Opaque", "data": None, "stringData": None, "immutable": None,
            "metadata.annotations": {"helm.sh/resource-policy": "keep"}},
        "CustomResourceDefinition": {"metadata.annotations": {"helm.sh/resource-policy": "keep"},
            "spec": yaml.safe_load((CHART / "files" / "bindrequests.yaml").read_text(encoding="utf-8"))["spec"]},
        "ServiceAccount": {"automountServiceAccountToken": False},
        "NetworkPolicy": {"": None},
        "Deployment/bowline-webhook": {"spec.strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}},
        # Replicas that serve no call do not prevent a drain of their nodes.
        "PodDisruptionBudget/bowline-webhook": {"spec.maxUnavailable": 1,
            "spec.unhealthyPodEvictionPolicy": "AlwaysAllow", f"spec.selector.matchLabels[{COMPONENT}]": "webhook"},
        "PodDisruptionBudget/bowline-reconciler": {f"spec.selector.matchLabels[{COMPONENT}]": "reconciler"},
        "pods": {"spec.enableServiceLinks": False},
        "webhook": {"spec.hostNetwork": None, "spec.dnsPolicy": None, **process("webhook"),
            "spec.containers[0].args": Has(["--ca-secret=bowline-ca"])},
        "reconciler": {**process("reconciler"), "spec.containers[0].args": Has(["--debug-listen=127.0.0.1:6060"])},
        # No pod of a user takes the device of a reservation by its priority.
        "PriorityClass": {"value": 10**9, "preemptionPolicy": "Never"},
        "config": {"admission": None},  # Enforce
    }),
    "no CRD": ({"crds": {"enabled": False}}, {"CustomResourceDefinition": {"": None}}),
    "the chart's version is the tag": ({}, image("registry.example/bowline:0.1.0")),
    "a given tag": ({"image": {"tag": "v2"}}, image("registry.example/bowline:v2")),
    "an image on the nodes": ({"image": {"registry": "", "pullPolicy": "Never"}}, image("bowline:0.1.0")),
    "a registry": ({"image": {"registry": "r.example:5000/team"}}, image("r.example:5000/team/bowline:0.1.0")),
    "a digest has priority over the tag": ({"image": {"registry": "", "tag": "v2", "digest": DIGEST}},
        image(f"bowline@{DIGEST}")),
    "a parent's registry": ({"global": {**MIRROR, "other": "chart"}}, image("mirror.example/bowline:0.1.0")),
    "a parent's registry alone": ({"image": {"registry": ""}, "global": MIRROR},
        image("mirror.example/bowline:0.1.0")),
    "pull secrets, of a parent too": ({"image": {"pullSecrets": [{"name": "a"}]},
        "global": {"imagePullSecrets": ["b", {"name": "c"}, "a"]}}, {
        "pods": {"spec.imagePullSecrets": [{"name": name} for name in "abc"]},
        "ServiceAccount/bowline-gpu-agent": {"imagePullSecrets": [{"name": name} for name in "abc"]}}),
    "contexts": ({"podSecurityContext": {"runAsUser": 7}, "containerSecurityContext": {"runAsNonRoot": True}},
        contexts(POD_CONTEXT | {"runAsUser": 7}, CONTAINER_CONTEXT | {"runAsNonRoot": True})),
    "OpenShift": (yaml.safe_load((CHART / "presets" / "openshift.yaml").read_text(encoding="utf-8")),
        contexts({"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, CONTAINER_CONTEXT)),
    "no contexts": ({"podSecurityContext": None, "containerSecurityContext": None}, contexts(None, None)),
    "reservations": (RESERVATION, {
        "config": {"plugins[gpu_sharing].args": Has({"reservationPriorityClassName": "gpu",
            "reservationRequests": {"cpu": "1"}, "reservationLimits": {"memory": "1Gi"}})},
        "ValidatingAdmissionPolicy/bowline-reconciler-pods": {"spec": Has(
            "object.spec.priorityClassName == 'gpu'")}}),
    "the plugin's own arguments precede": ({**RESERVATION, "config": {"plugins": OWN_CLASS}}, {
        "config": {"plugins[gpu_sharing].enabled": True,
            "plugins[gpu_sharing].args.reservationPriorityClassName": "own"}}),
    "labels of all objects": ({"commonLabels": LABELS}, {
        "all": {"metadata.labels": Has(LABELS)}, "pods": {"metadata.labels": Has(LABELS)},
        **{f"Deployment/bowline-{process}": {"spec.selector.matchLabels": {"app.kubernetes.io/name": "bowline",
            "app.kubernetes.io/instance": "bowline", COMPONENT: process}} for process in PROCESSES}}),
    "where pods are": ({**PLACE, "affinity": {"podAntiAffinity": {}}}, {
        "pods": {**{f"spec.{key}": value for key, value in PLACE.items()}, "spec.affinity.podAntiAffinity": {}}}),
    "volumes, variables, annotations": ({"extraVolumes": [VOLUME], "extraVolumeMounts": [MOUNT],
        "extraEnv": [{"name": "A", "value": "b"}], "podAnnotations": {"a": "b"}}, {
        "processes and jobs": {"spec.volumes[ca]": VOLUME, "spec.containers[0].volumeMounts[ca]": MOUNT,
            "spec.containers[0].env[A].value": "b"},
        **{process: {"metadata.annotations": {"a": "b"}} for process in PROCESSES}}),
    "further objects": ({"extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}},
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, labels: {{ include "bowline.labels" . | fromYaml '
        "| toJson }}}"]}, {"ConfigMap/bowline-a": {"metadata": {"name": "bowline-a"}},
        "ConfigMap/b": {"metadata.labels[app.kubernetes.io/instance]": "bowline"}}),
    "one webhook": ({"webhook": {"replicas": 1}}, {"PodDisruptionBudget/bowline-webhook": {"": None},
        "PodDisruptionBudget/bowline-reconciler": {"kind": "PodDisruptionBudget"}}),
    "one reconciler": ({"reconciler": {"replicas": 1}}, {"PodDisruptionBudget/bowline-reconciler": {"": None},
        "PodDisruptionBudget/bowline-webhook": {"kind": "PodDisruptionBudget"}}),
    "one of each": (LOCAL, {"PodDisruptionBudget": {"": None}}),
    "replicas of an autoscaler": ({"webhook": {"replicas": None}, "reconciler": {"replicas": None}}, {
        "Deployment": {"spec.replicas": None},
        **{f"PodDisruptionBudget/bowline-{process}": {"kind": "PodDisruptionBudget"} for process in PROCESSES}}),
    "replicas of an autoscaler, Off": ({"webhook": {"replicas": None}, "admission": {"mode": "Off"}}, {
        "Deployment/bowline-webhook": {"spec.replicas": None}}),
    "the node's network": ({"webhook": {"hostNetwork": True, "port": 10250, "metricsPort": 10251}}, {
        "webhook": {"spec.hostNetwork": True, "spec.dnsPolicy": "ClusterFirstWithHostNet",
            "spec.containers[0].ports[https].containerPort": 10250,
            "spec.containers[0].ports[metrics].containerPort": 10251},
        # A node has the ports of one replica.
        "Deployment/bowline-webhook": {"spec.strategy.rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
        "reconciler": {"spec.hostNetwork": None}}),
    "network policies": ({"networkPolicy": {"enabled": True}}, network([ingress("https")], None, None)),
    "network policies with peers": ({"networkPolicy": {"enabled": True, "apiServers": PEERS, "monitoring": MONITORING,
        "egress": [EGRESS]}}, network([ingress("https", PEERS), ingress("metrics", MONITORING)],
        [ingress("metrics", MONITORING)], [EGRESS])),
    "one's own certificate": ({"webhook": {"tls": {"mode": "secret", "secretName": "serving-cert"}}},
        tls("serving-cert")),
    "cert-manager, with a name": ({"webhook": {"tls": {"mode": "cert-manager", "secretName": "x"}}}, tls("x")),
    "cert-manager": (CERT_MANAGER, {**tls("bowline-webhook-tls"),
        "Certificate/bowline-webhook": {"spec.secretName": "bowline-webhook-tls",
            "spec.dnsNames": Has([f"bowline-webhook.{NAMESPACE}.svc"]), "spec.issuerRef.name": "bowline-webhook"},
        "Certificate/bowline-webhook-ca": {"spec.isCA": True, "spec.secretName": "bowline-webhook-issuer-ca",
            "spec.issuerRef.name": "bowline-webhook-root"},
        "Issuer/bowline-webhook": {"spec": {"ca": {"secretName": "bowline-webhook-issuer-ca"}}},
        "Issuer/bowline-webhook-root": {"spec": {"selfSigned": {}}},
        HOOKS: {"metadata.annotations": {"a": "b", "admissions.enforcer/disabled": "true",
            "cert-manager.io/inject-ca-from": f"{NAMESPACE}/bowline-webhook"}}}),
    "cert-manager's given issuer": ({"webhook": {"tls": {"mode": "cert-manager", "issuerRef": ISSUER}}}, {
        "Issuer": {"": None}, "Certificate": {"spec.issuerRef": {**ISSUER, "group": "cert-manager.io"}}}),
    "callers": ({"webhook": {"tls": {"clientCASecret": "callers", "clientAllowedNames": ["a", "front: 1"]}}}, {
        "webhook": {"spec.containers[0].args": Has([f"--client-ca-file={CLIENT_FOLDER}/ca.crt",
            "--client-allowed-name=a", "--client-allowed-name=front: 1"]),
            "spec.containers[0].volumeMounts[client-ca].mountPath": CLIENT_FOLDER,
            "spec.volumes[client-ca].secret": {"secretName": "callers",
                "items": [{"key": "ca.crt", "path": "ca.crt"}]}}}),
    "no check": ({"hooks": {"check": False}},
        {"Job/bowline-check": {"": None}, "Job/bowline-uninstall": {"kind": "Job"}}),
    **{f"volumes {word}": ({"config": {"plugins": {"volume_binding": {"enabled": word == "on"}}}}, {
        "ConfigMap/bowline-info": {"data[release.json]": Has(f'"volumeBinding":{json_word}')}})
        for word, json_word in (("on", "true"), ("off", "false"))},
    # With these labels one command deletes all that can deny.
    "all that can deny": (merged(EVERYTHING, WITH_FAIL), {DENYING: {"metadata.labels": Has(
        {"app.kubernetes.io/name": "bowline", "app.kubernetes.io/instance": "bowline"})}}),
    "Warn": ({**WITH_FAIL, "admission": {"mode": "Warn"}}, WARN),
    "Warn, everything": (merged(EVERYTHING, {"admission": {"mode": "Warn"}}), WARN),
    "Warn, given twice": ({"admission": {"mode": "Warn"}, "config": {"admission": {"mode": "Warn"}}}, WARN),
    # YAML reads an Off without quotes as false.
    "Off": ({"admission": {"mode": False}}, OFF),
    "Off, everything": (merged(EVERYTHING, {"admission": {"mode": "Off"}}), OFF),
}  # fmt: skip


@pytest.mark.parametrize(("values", "expectation"), ROWS.values(), ids=ROWS)
def test_what_values_change(chart: Chart, values: dict[str, Any], expectation: Expectation) -> None:
    manifests = chart.render(values)
    for word, paths in expectation.items():
        for obj in selected(manifests, word):
            assert {path: at(obj, path) for path in paths} == paths, (word, obj)


@pytest.mark.parametrize("values", [WITH_FAIL, EVERYTHING])
def test_in_mode_warn_every_hook_fails_open(chart: Chart, values: dict[str, Any]) -> None:
    manifests = chart.render(merged(values, {"admission": {"mode": "Warn"}}))
    assert {hook["failurePolicy"] for _, hook in manifests.hooks()} == {"Ignore"}


def test_grace_periods_cover_the_stop_of_the_processes(manifests: Rendered) -> None:
    webhook, reconciler = (
        selected(manifests, process)[0]["spec"]["terminationGracePeriodSeconds"] for process in PROCESSES
    )
    assert webhook > parse_options([], {}).drain.total_seconds() + MAX_TIMEOUT_S + 10
    assert reconciler > (WORK + 2 * MOMENT).total_seconds()
