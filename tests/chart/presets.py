"""Typical values; the chart's invariants must hold with each of them."""

from typing import Any

import pytest
import yaml

from bowline.framework.workload_kinds import READY
from bowline.localcluster.pair import LOCAL_VALUES

LOCAL = yaml.safe_load(LOCAL_VALUES.read_text(encoding="utf-8"))
# Steps of both kinds, one within the other.
OWN_KIND = {
    "group": "example.com",
    "kind": "Own",
    "resource": "owns",
    "templates": ["spec.groups[*].roles.*.template", "spec.roles.*.groups[*].template"],
}
EVERYTHING: dict[str, Any] = {
    "image": {"registry": "registry.example", "digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "pull"}]},
    "global": {"imagePullSecrets": ["parent"]},
    "commonLabels": {"team": "gpu"},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra"}}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"a": "b"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "corporate-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/corporate", "readOnly": True}],
    "networkPolicy": {"enabled": True},
    "config": {
        "schedulerNames": ["*"],
        "namespaces": {"exclude": ["monitoring"]},
        "binding": {"workers": 8},
        "workloads": [*({"kind": workload.kind} for workload in READY), OWN_KIND],
    },
    "webhook": {
        "replicas": 3,
        "serviceAccountName": "admission",
        "url": "https://webhook.example:9443/bowline/",
        "tls": {
            "mode": "secret",
            "secretName": "serving-cert",
            "clientCASecret": "callers",
            "clientAllowedNames": ["kube-apiserver", "front-proxy"],
        },
        "annotations": {"cert-manager.io/inject-ca-from": "bowline-system/serving-cert"},
        "namespaceSelector": {
            "matchLabels": {"gpu": "yes"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["infra"]}],
        },
        "extraArgs": ["--drain=1s"],
    },
    "reconciler": {"extraArgs": ["--x"], "serviceAccountName": "theirs"},
}
PRESETS = [
    pytest.param({}, id="the chart's own values"),
    pytest.param(LOCAL, id="the local cluster's values"),
    pytest.param(EVERYTHING, id="every value set"),
    pytest.param({"crds": {"enabled": False}, "webhook": {"replicas": 1}}, id="one webhook, CRD from elsewhere"),
]
# Valid, but not within the restricted Pod Security Standard.
UNRESTRICTED = [
    pytest.param({"webhook": {"hostNetwork": True}}, id="the network of the node"),
    pytest.param({"podSecurityContext": None, "containerSecurityContext": None}, id="no security contexts"),
]
