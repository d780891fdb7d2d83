"""The reservation pod as it is created. Pure.

It names its node itself, past every scheduler: the decision is made already. It tolerates what the sharing pod
tolerates, for it must run where that one runs, and has no owner, for it outlives the pod it was made for as long as
others share its device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.api import names
from shared.plugins.gpu_sharing.reservation import Claim, reservation_name


@dataclass(frozen=True, slots=True)
class ReservationSpec:
    """What reservation pods of this cluster are like."""

    namespace: str
    image: str
    runtime_class: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)
    fake: bool = False


def reservation_object(claim: Claim, spec: ReservationSpec) -> dict[str, Any]:
    """Return the pod that reserves a device of the node for the group."""
    env = [_field("POD_NAME", "metadata.name"), _field("POD_NAMESPACE", "metadata.namespace")]
    arguments = []
    if spec.fake:
        env.append(_field("NODE_NAME", "spec.nodeName"))
        arguments.append("--fake")
    others = {name: amount for name, amount in spec.resources.items() if name != names.RESOURCE_GPU}
    wanted = {**others, names.RESOURCE_GPU: "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": reservation_name(claim.node, claim.group),
            "namespace": spec.namespace,
            "labels": {"app": names.RESERVATION_APP, names.LABEL_GPU_GROUP: claim.group},
            "annotations": {names.DO_NOT_DISRUPT: "true"},
        },
        "spec": {
            "nodeName": claim.node,
            "serviceAccountName": names.RESERVATION_SERVICE_ACCOUNT,
            "automountServiceAccountToken": True,
            "tolerations": list(claim.tolerations),
            **({"runtimeClassName": spec.runtime_class} if spec.runtime_class else {}),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10000,
                "runAsGroup": 10000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": names.RESERVATION_CONTAINER,
                    "image": spec.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-m", "shared.plugins.gpu_sharing.agent"],
                    "args": [*arguments, "--listen=:8080"],
                    "env": env,
                    "resources": {"requests": wanted, "limits": wanted},
                    "ports": [{"name": "health", "containerPort": 8080}],
                    "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 30},
                    "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 10},
                    # Why the agent ended is then in the pod's status, and from there in the request's.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
