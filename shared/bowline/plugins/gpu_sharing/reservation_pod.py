"""The manifest of a reservation pod. Pure.

It sets nodeName, bypassing schedulers: the decision is made already. It has the sharing pod's tolerations, because it
must run on the same node, or all if these are too many to copy, and no owner, because it outlives the first pod as
long as others share the device.
The chart's policy compares the whole pod: a field that is added here needs an entry there. Decision 160.
"""

from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.api.meta import Object
from bowline.api.taints import MAX_TOLERATIONS
from bowline.framework.config import GpuSharingSettings
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.reservation import AGENT, DeviceRequest


def reservation_object(
    claim: DeviceRequest, sharing: GpuSharingSettings, args: GpuSharingConfig, name: str
) -> dict[str, Any]:
    """Return the pod of this name that reserves a device of the node for the group."""
    expected = ",".join(sorted(claim.expected_devices))
    # KAI-Scheduler 0.17 reads the mode; its absence is time-slicing.
    optional_annotations = {names.COMPUTE_MODE: claim.compute_mode, names.ANNOTATION_EXPECTED_DEVICES: expected}
    annotations = {names.DO_NOT_DISRUPT: "true", **{key: text for key, text in optional_annotations.items() if text}}
    # Without a controller `kubectl drain` and NVIDIA's driver upgrade refuse to move the pods of the node.
    owner = {"apiVersion": "v1", "kind": "Node", "name": claim.node, "uid": claim.node_facts.uid, "controller": True}
    env = [_field("POD_NAME", "metadata.name"), _field("POD_NAMESPACE", "metadata.namespace")]
    # Empty settings are left to the cluster's defaults.
    optional = {
        "runtimeClassName": args.reservation_runtime_class_name,
        "priorityClassName": args.reservation_priority_class_name,
        "securityContext": args.reservation_pod_security_context,
    }
    container_security = args.reservation_container_security_context
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": sharing.reservation_namespace,
            "labels": {"app": args.reservation_app_label, names.LABEL_GPU_GROUP: claim.group},
            "annotations": annotations,
            **({"ownerReferences": [owner]} if claim.node_facts.uid else {}),
        },
        "spec": {
            "nodeName": claim.node,
            "serviceAccountName": names.RESERVATION_SERVICE_ACCOUNT,
            "automountServiceAccountToken": True,
            "tolerations": _tolerations(claim),
            **{name: value for name, value in optional.items() if value},
            "containers": [
                {
                    "name": names.RESERVATION_CONTAINER,
                    "image": sharing.agent_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-m", AGENT],
                    "args": [*(["--fake"] if claim.node_facts.has_fake_gpus else []), "--listen=:8080"],
                    "env": env,
                    "resources": _resources(args),
                    "ports": [{"name": "health", "containerPort": 8080}],
                    "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 30},
                    "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 10},
                    # The agent's last log lines are then in the pod's status, and from there in the request's.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    **({"securityContext": container_security} if container_security else {}),
                }
            ],
        },
    }


def essential_parts(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be stored of a reservation pod; the rest, such as the image, clusters may adapt."""
    metadata, (container,) = pod["metadata"], pod["spec"]["containers"]
    limits = {names.RESOURCE_GPU: container["resources"]["limits"][names.RESOURCE_GPU]}
    return {
        "metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]},
        "spec": {
            "nodeName": pod["spec"]["nodeName"],
            "containers": [{"name": container["name"], "resources": {"limits": limits}}],
        },
    }


def _tolerations(claim: DeviceRequest) -> list[Object]:
    """Return the tolerations. A pod with too many is not bound here; another binder may have bound one."""
    return list(claim.tolerations) if len(claim.tolerations) <= MAX_TOLERATIONS else [{"operator": "Exists"}]


def _resources(args: GpuSharingConfig) -> dict[str, dict[str, str]]:
    """Return requests and limits: always one GPU, whatever the settings contain for GPUs."""
    gpu = {names.RESOURCE_GPU: "1"}
    return {"requests": args.reservation_requests | gpu, "limits": args.reservation_limits | gpu}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
