"""What a stolen token of the reconciler, the webhook or an agent can do on a real API server, given the policies.

RBAC allows each request; a policy of the account denies it, or none does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.localcluster.cluster import Cluster
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.reservation import DeviceRequest
from bowline.plugins.gpu_sharing.reservation_pod import ReservationSpec, reservation_object
from tests.chart.policies import (
    AGENT,
    DRY,
    RECONCILER,
    RESERVATIONS,
    SECRET,
    WEBHOOK,
    Policies,
    installation,
    remove,
)
from tests.chart.rendering import Chart
from tests.waiting import wait_until

CORE, SYSTEM = "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"
EXCLUDED = "/api/v1/namespaces/kube-public"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GROUP, SHARING = names.LABEL_GPU_GROUP, names.LABEL_GPU_SHARING
NODE_IP = {"ip": "10.0.0.1"}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "share", "uid": "11111111-2222-4333-8444-555555555555"}
IMAGE = "registry.example/bowline:0.1.0"
CONFIG = {"namespaces": {"exclude": ["kube-public"]}}
LISTED = ["mirror.example:5000/registry.example/bowline", "rewritten.example/"]
VALUES = {
    "image": {"registry": "registry.example"},
    "config": CONFIG,
    "policy": {"agentImages": LISTED, "reservationKeys": ["mesh.example/injected"]},
    "reservation": {"resources": {"limits": {"memory": "32Gi"}}},
    "pluginAccess": [{"plugin": "own", "bindingAnnotations": ["own.example/x"]}],
}
DEVICES = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
EXTENDED = {names.EXTENDED_RESOURCE_CLAIM: "true"}
UNLABELLED = "gpu-reservation-0123456789abcdef"
PSA = "pod-security.kubernetes.io/enforce"


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "registry.example/app:1"}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}


def configmap(name: str, *, labelled: bool = True, owned: bool = True) -> dict[str, Any]:
    labels = {SHARING: "true"} if labelled else {}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [OWNER] if owned else []}}


def reservation(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The manifest of a reservation pod, with these fields of its container and its spec."""
    request = DeviceRequest(ObjectKey("default", "r"), ObjectUID("u"), ObjectKey("default", "share"), "node", "g")
    settings = GpuSharingConfig(reservation_priority_class_name="bowline-shares")
    pods_spec = ReservationSpec("kai-resource-reservation", IMAGE, is_fake=lambda _: True, settings=settings)
    body = reservation_object(request, pods_spec, name="new")
    body["spec"]["containers"][0].update(container or {})
    body["spec"].update(spec)
    return body


def described_reservation(**fields: Any) -> dict[str, Any]:
    """The manifest of a reservation pod, with these entries in the fields of its metadata."""
    body = reservation()
    for field, entries in fields.items():
        body["metadata"][field] = body["metadata"][field] | entries if isinstance(entries, dict) else entries
    return body


def sized_reservation(field: str, **resources: str) -> dict[str, Any]:
    gpu = {names.RESOURCE_GPU: resources.get(names.RESOURCE_GPU, "1")}
    return reservation({"resources": {"limits": gpu, "requests": gpu} | {field: gpu | resources}})


def beside_the_agent(**container: Any) -> list[dict[str, Any]]:
    return [*reservation()["spec"]["containers"], {"name": "x", "image": IMAGE, **container}]


def claim(name: str, *, extended: bool = True, owned: bool = True) -> dict[str, Any]:
    metadata = {
        "name": name,
        "annotations": EXTENDED if extended else {},
        "ownerReferences": [OWNER] if owned else [],
    }
    return {"metadata": metadata, "spec": DEVICES}


def volume(name: str, **spec: Any) -> dict[str, Any]:
    volume_spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"},
        **spec,
    }
    return {"metadata": {"name": name}, "spec": volume_spec}


def metadata(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


REFERENCE = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "uid": "u"}
# Beyond the agent itself.
OF_OTHERS: dict[str, dict[str, Any]] = {
    "a liveness probe of another host": {"livenessProbe": {"httpGet": {"host": "192.0.2.1", "port": 80}}},
    "a readiness probe of another host": {"readinessProbe": {"httpGet": {"host": "192.0.2.1", "port": 80}}},
    "a probe of another port": {"readinessProbe": {"httpGet": {"port": 80}}},
    "a probe with a header": {
        "readinessProbe": {"httpGet": {"port": 8080, "httpHeaders": [{"name": "a", "value": "b"}]}}
    },
}
# Read by container runtimes and their plugins, network plugins, identity webhooks and service meshes.
FOREIGN_ANNOTATIONS = (
    *("cdi.k8s.io/x", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.resource-reservation"),
    *("devices.crio.io", "io.kubernetes.cri-o.Devices", "io.kubernetes.cri-o.userns-mode", "run.oci.handler"),
    *(
        "devices.noderesource.dev/pod",
        "cdi-devices.noderesource.dev/pod",
        "cdi-devices.nri.io/pod",
        "mounts.nri.io/pod",
    ),
    *(
        "nvidia.com/container.resource-reservation.gpus.devices",
        "container.apparmor.security.beta.kubernetes.io/resource-reservation",
    ),
    *("k8s.v1.cni.cncf.io/networks", "sidecar.istio.io/inject", "iam.amazonaws.com/role", "any.example/key"),
)
SIZES: dict[str, dict[str, Any]] = {
    "two GPUs": sized_reservation("limits", **{names.RESOURCE_GPU: "2"}),
    "a thousand GPUs": sized_reservation("limits", **{names.RESOURCE_GPU: "1k"}),
    "a terabyte of memory": sized_reservation("limits", memory="1Ti"),
    "requests of a terabyte": sized_reservation("requests", memory="1Ti"),
    "five CPUs": sized_reservation("requests", cpu="5"),
    "another resource": sized_reservation("limits", **{"example.com/device": "1"}),
}
BOUND_VOLUME = "/api/v1/persistentvolumes/bound"
STORED = [
    (f"{CORE}/pods", pod("share", labels={"app": "x"}, annotations={"a": "b"})),
    (f"{SYSTEM}/pods", pod("share")),
    (f"{EXCLUDED}/pods", pod("share")),
    (f"{CORE}/configmaps", configmap("share-0")),
    # As left by an earlier version or another binder.
    (f"{CORE}/configmaps", configmap("older-i0-evar", labelled=False)),
    (f"{CORE}/configmaps", configmap("spark-driver", labelled=False)),
    (f"{CORE}/configmaps", configmap("mine-0", labelled=False, owned=False)),
    (f"{SYSTEM}/configmaps", configmap("share-0")),
    (CLAIMS, claim("extended")),
    (CLAIMS, claim("users", extended=False, owned=False)),
    ("/api/v1/persistentvolumes", volume("free")),
    ("/api/v1/persistentvolumes", volume("taken", claimRef={"namespace": "default", "name": "taken"})),
    ("/api/v1/persistentvolumes", volume("uid", claimRef={**REFERENCE, "name": "taken"})),
    ("/api/v1/persistentvolumes", volume("bound", claimRef={"namespace": "default", "name": "taken"})),
    (f"{CORE}/configmaps", configmap("orphan-0", owned=False)),
    (
        f"{CORE}/persistentvolumeclaims",
        {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    ),
    *(
        (
            RESERVATIONS,
            {
                **reservation(),
                "metadata": {
                    "name": name,
                    "labels": {"app": names.RESERVATION_APP, GROUP: "g"},
                    "annotations": {names.RESERVED_DEVICE: "GPU-0"},
                },
            },
        )
        for name in ("own", "next")
    ),
    (RESERVATIONS, pod("foreign")),
    # A policy of the cluster has removed its labels.
    (RESERVATIONS, {**reservation(), "metadata": {"name": UNLABELLED}}),
    ("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "x"}, "handler": "x"}),
]


@pytest.fixture(scope="module")
def policies(chart: Chart, chart_cluster: Cluster) -> Iterator[Policies]:
    """The policies in force over one object of each kind."""
    api = chart_cluster.api
    with installation(chart_cluster, chart.render(VALUES)) as made:
        for path, body in STORED:
            api.post(path, body)
        api.patch(f"{BOUND_VOLUME}/status", {"status": {"phase": "Bound"}})
        api.patch(STATUS, {"status": {"hostIP": NODE_IP["ip"], "hostIPs": [NODE_IP]}})
        yield made
        for path, body in STORED:
            remove(api, f"{path}/{body['metadata']['name']}")


@pytest.fixture
def own_uid(policies: Policies) -> str:
    """The UID of the reservation pod that the agent's token was issued to."""
    return str(policies.cluster.api.get(f"{RESERVATIONS}/own")["metadata"]["uid"])


POD, STATUS = f"{CORE}/pods/share", f"{CORE}/pods/share/status"
IMAGE_CHANGED = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
LABELLED = metadata(labels={GROUP: "g", f"{GROUP}/h": "h", SHARING: "true"})
CONDITION = {"type": names.CONDITION_POD_BOUND, "status": "False", "lastTransitionTime": None}
DECISION = {**CONDITION, "type": names.CONDITION_DECISION_FAILED, "message": "{}"}
READY = {"type": "Ready", "status": "True", "lastTransitionTime": None}
SELECTED = metadata(annotations={names.SELECTED_NODE: "n", names.PREPARED_FOR: "u"})
OTHER_IMAGE = "the image registry.example/bowline-x:1 is none of the agent: registry.example/bowline, "
CONTEXT = reservation()["spec"]["containers"][0]["securityContext"]
CHANGES: dict[str, dict[str, Any]] = {
    "another command": {"command": ["sh"]},
    "no command": {"command": None},
    "other arguments": {"args": ["-c", "evil"]},
    "a variable with a value": {"env": [{"name": "NODE_NAME", "value": "all"}]},
    "another variable": {"env": [{"name": names.VISIBLE_DEVICES, "value": "all"}]},
    "variables of a Secret": {"envFrom": [{"secretRef": {"name": "s"}}]},
    "a port of the node": {"ports": [{"containerPort": 8080, "hostPort": 8080}]},
    "a probe that runs a command": {"livenessProbe": {"exec": {"command": ["evil"]}}},
    "a hook that runs a command": {"lifecycle": {"preStop": {"exec": {"command": ["evil"]}}}},
}
CONTEXTS: dict[str, dict[str, Any]] = {
    "privileged": {"privileged": True, "allowPrivilegeEscalation": True},
    "escalation": {"allowPrivilegeEscalation": True},
    "added capabilities": {"capabilities": {"add": ["NET_BIND_SERVICE"]}},
    "every capability": {"capabilities": {"add": ["ALL"]}},
    "root": {"runAsUser": 0},
    "unconfined seccomp": {"seccompProfile": {"type": "Unconfined"}},
    "unconfined AppArmor": {"appArmorProfile": {"type": "Unconfined"}},
}
VOLUMES: dict[str, dict[str, Any]] = {
    "hostPath": {"path": "/"},
    "secret": {"secretName": "s"},
    "configMap": {"name": "c"},
    "emptyDir": {},
    "nfs": {"server": "s", "path": "/"},
    "persistentVolumeClaim": {"claimName": "c"},
    "csi": {"driver": "d"},
    "image": {"reference": "evil"},
    "ephemeral": {
        "volumeClaimTemplate": {
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        }
    },
    "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]},
}


def binding(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
    metadata = {"name": "share", "annotations": annotations or {}, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


# Of devices that no driver has offered.
RESULT = {"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "d"}
ALLOCATED = {
    **claim("users", extended=False, owned=False),
    "status": {"allocation": {"devices": {"results": [RESULT]}}},
}
OF_PLUGINS = {names.PREPARED_FOR: "u", names.RECEIVED_RESOURCE_TYPE: "Fraction", names.NUMA_PLACEMENT_PREDICTED: "[]"}
STATUS_FIELDS: dict[str, Any] = {
    "hostIPs": [NODE_IP, {"ip": "fd00::9"}],
    "observedGeneration": 99,
    "resize": "InProgress",
    "allocatedResources": {"cpu": "9"},
    "resources": {"requests": {"cpu": "9"}},
}
RECONCILER_MAY = [
    pytest.param("PATCH", POD, LABELLED, id="label a sharing pod"),
    pytest.param("PATCH", STATUS, {"status": {"conditions": [CONDITION]}}, id="write the condition PodBound"),
    pytest.param("PATCH", STATUS, {"status": {"conditions": [DECISION]}}, id="write the condition DecisionFailed"),
    pytest.param("PATCH", STATUS, {"status": {"nominatedNodeName": "n"}}, id="nominate a pod to a node"),
    pytest.param("POST", f"{CORE}/configmaps", configmap("new-0"), id="create a share's ConfigMap"),
    pytest.param("POST", f"{CORE}/configmaps", configmap("any-0"), id="create one of a pod that is not there"),
    pytest.param("DELETE", f"{CORE}/configmaps/orphan-0", None, id="delete one that its pod has left behind"),
    pytest.param("DELETE", f"{CORE}/configmaps/share-0", None, id="delete a share's ConfigMap"),
    pytest.param("DELETE", f"{CORE}/configmaps/older-i0-evar", None, id="delete one of an earlier version"),
    pytest.param("POST", RESERVATIONS, reservation(), id="create a reservation pod"),
    *(
        pytest.param("POST", RESERVATIONS, reservation({"image": image}), id=f"create one with {why}")
        for image, why in [
            ("registry.example/bowline:0.2.0", "another tag"),
            ("registry.example/bowline@sha256:" + "a" * 64, "a digest"),
            ("registry.example/bowline", "no tag"),
            ("mirror.example:5000/registry.example/bowline:0.1.0", "an image that is listed"),
            ("rewritten.example/any/bowline:1", "an image below a listed prefix"),
        ]
    ),
    *(
        pytest.param("POST", RESERVATIONS, body, id=f"create one with {why}")
        for why, body in (
            (
                "keys that the cluster adds",
                described_reservation(
                    labels={"mesh.example/injected": "x"},
                    annotations={
                        "mesh.example/injected": "x",
                        "kubernetes.io/limit-ranger": "x",
                        "openshift.io/scc": "x",
                    },
                ),
            ),
            ("a share's mode", described_reservation(annotations={names.COMPUTE_MODE: names.SM_SHARING})),
            ("the configured memory", sized_reservation("limits", memory="32Gi")),
            ("the requests of a LimitRange", sized_reservation("requests", cpu="500m", memory="512Mi")),
        )
    ),
    pytest.param("POST", f"{CORE}/pods/share/binding", binding(OF_PLUGINS), id="bind with the plugins' annotations"),
    pytest.param(
        "POST",
        f"{CORE}/pods/share/binding",
        binding({"own.example/x": "y"}),
        id="bind with one that a plugin declares",
    ),
    pytest.param("DELETE", f"{RESERVATIONS}/own", None, id="delete a reservation pod"),
    pytest.param("DELETE", f"{RESERVATIONS}/{UNLABELLED}", None, id="delete one that has lost its labels"),
    pytest.param(
        "PATCH",
        f"{RESERVATIONS}/{UNLABELLED}",
        metadata(labels={"app": names.RESERVATION_APP, GROUP: "g"}),
        id="label one that has lost its labels",
    ),
    pytest.param("POST", CLAIMS, claim("new"), id="create the claim of extended resources"),
    pytest.param("DELETE", f"{CLAIMS}/extended", None, id="delete the claim of extended resources"),
    pytest.param(
        "PATCH", f"{CLAIMS}/users", metadata(finalizers=[names.RESOURCE_CLAIM_PROTECTION]), id="protect any claim"
    ),
    pytest.param("PUT", f"{CLAIMS}/users/status", ALLOCATED, id="allocate any claim"),
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/free",
        {
            **metadata(annotations={names.BOUND_BY_CONTROLLER: "yes"}),
            "spec": {"claimRef": {**REFERENCE, "name": "data"}},
        },
        id="bind a free volume",
    ),
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/taken",
        {"spec": {"claimRef": {**REFERENCE, "name": "taken"}}},
        id="complete the reference of a volume that is kept for a claim",
    ),
    pytest.param("PATCH", f"{CORE}/persistentvolumeclaims/data", SELECTED, id="select a claim's node"),
]
RECONCILER_MAY_NOT = [
    pytest.param("PATCH", POD, IMAGE_CHANGED, "spec", id="change an image"),
    pytest.param("PATCH", POD, metadata(labels={"app": "y"}), "its plugins declare", id="change another label"),
    pytest.param(
        "PATCH", f"{RESERVATIONS}/own", metadata(labels={"app": None}), "its plugins declare", id="hide one"
    ),
    pytest.param("PATCH", POD, metadata(labels={"app": None}), "its plugins declare", id="remove another label"),
    pytest.param("PATCH", POD, metadata(annotations={"a": "c"}), "its plugins declare", id="change an annotation"),
    pytest.param("PATCH", POD, metadata(finalizers=["x.example/y"]), "its plugins declare", id="add a finalizer"),
    pytest.param("PATCH", POD, metadata(ownerReferences=[OWNER]), "its plugins declare", id="change owners"),
    pytest.param("PATCH", f"{SYSTEM}/pods/share", LABELLED, "excluded", id="label a pod in kube-system"),
    pytest.param("PATCH", f"{EXCLUDED}/pods/share", LABELLED, "excluded", id="label a pod in an excluded namespace"),
    pytest.param("PATCH", STATUS, metadata(labels={"app": "y"}), "metadata", id="change labels by the status"),
    pytest.param("PATCH", STATUS, {"status": {"podIP": "10.0.0.9"}}, "only the condition", id="change a pod's IP"),
    *(
        pytest.param("PATCH", STATUS, {"status": {field: value}}, "only the condition", id=f"change {field}")
        for field, value in STATUS_FIELDS.items()
    ),
    pytest.param("PATCH", STATUS, {"status": {"phase": "Failed"}}, "only the condition", id="end a pod"),
    pytest.param("PATCH", STATUS, {"status": {"conditions": [READY]}}, "only the condition", id="make a pod ready"),
    pytest.param(
        "POST", f"{CORE}/configmaps", configmap("n", labelled=False), "only ConfigMaps", id="make an unlabelled map"
    ),
    pytest.param(
        "POST", f"{CORE}/configmaps", configmap("n", owned=False), "only ConfigMaps", id="make one without a pod"
    ),
    pytest.param("POST", f"{SYSTEM}/configmaps", configmap("n-0"), "namespace", id="make a ConfigMap in kube-system"),
    pytest.param("DELETE", f"{SYSTEM}/configmaps/share-0", None, "namespace", id="delete one in kube-system"),
    pytest.param("DELETE", f"{CORE}/configmaps/mine-0", None, "owned", id="delete a tenant's ConfigMap"),
    pytest.param("DELETE", f"{CORE}/configmaps/spark-driver", None, "owned", id="delete another pod's ConfigMap"),
    pytest.param("POST", RESERVATIONS, pod("n"), "only reservation", id="run any pod beside reservations"),
    pytest.param(
        "POST", RESERVATIONS, reservation({"image": "registry.example/bowline-x:1"}), OTHER_IMAGE, id="image"
    ),
    *(
        pytest.param("POST", RESERVATIONS, reservation({"image": image}), "is none of the agent", id=f"image {image}")
        for image in ("evil", "registry.example/bowline/evil", "mirror.example:5000/registry.example/bowline2:1")
    ),
    *(
        pytest.param("POST", RESERVATIONS, reservation(None, **{field: True}), f"no spec.{field}", id=field)
        for field in ("hostPID", "hostNetwork", "hostIPC", "shareProcessNamespace")
    ),
    *(
        pytest.param(
            "POST",
            RESERVATIONS,
            reservation(volumes=[{"name": "v", kind: source}]),
            "only volume",
            id=f"volume {kind}",
        )
        for kind, source in VOLUMES.items()
    ),
    pytest.param(
        "POST", RESERVATIONS, reservation(containers=beside_the_agent()), "only container", id="a second container"
    ),
    pytest.param(
        "POST",
        RESERVATIONS,
        reservation(initContainers=beside_the_agent()[1:]),
        "no spec.initContainers",
        id="an init container",
    ),
    pytest.param(
        "POST",
        RESERVATIONS,
        reservation(resourceClaims=[{"name": "c", "resourceClaimName": "c"}]),
        "no spec.resourceClaims",
        id="a claim of devices",
    ),
    *(
        pytest.param("POST", RESERVATIONS, reservation(change), "only container runs the agent", id=why)
        for why, change in CHANGES.items()
    ),
    *(
        pytest.param(
            "POST", RESERVATIONS, reservation({"securityContext": {**CONTEXT, **change}}), "security context", id=why
        )
        for why, change in CONTEXTS.items()
    ),
    pytest.param(
        "POST", RESERVATIONS, reservation(securityContext={"runAsUser": 0}), "security context", id="root by the pod"
    ),
    *(
        pytest.param("POST", RESERVATIONS, reservation(priorityClassName=name), "priority class", id=f"class {name}")
        for name in ("system-node-critical", "system-cluster-critical")
    ),
    pytest.param(
        "POST", RESERVATIONS, reservation(runtimeClassName="x"), "runtime class", id="run by another runtime class"
    ),
    *(
        pytest.param(
            "POST", RESERVATIONS, described_reservation(annotations={key: "unconfined"}), key, id=f"annotation {key}"
        )
        for key in FOREIGN_ANNOTATIONS
    ),
    *(
        pytest.param("POST", RESERVATIONS, described_reservation(labels={key: "true"}), key, id=f"label {key}")
        for key in ("azure.workload.identity/use", f"{GROUP}/h", "any.example/key")
    ),
    pytest.param(
        "POST", RESERVATIONS, described_reservation(finalizers=["x.example/y"]), "finalizers", id="keep one"
    ),
    pytest.param("POST", RESERVATIONS, described_reservation(ownerReferences=[OWNER]), "owners", id="own one"),
    *(pytest.param("POST", RESERVATIONS, body, "one nvidia.com/gpu", id=why) for why, body in SIZES.items()),
    pytest.param(
        "POST",
        f"{CORE}/pods/share/binding",
        binding(labels={"app": "evil"}),
        "no other",
        id="bind with a label",
    ),
    pytest.param(
        "POST", f"{CORE}/pods/share/binding", binding(labels={GROUP: "g"}), "no other", id="bind with a group"
    ),
    pytest.param(
        "POST", f"{CORE}/pods/share/binding", binding({"x": "y"}), "other annotation", id="bind with any annotation"
    ),
    *(
        pytest.param(
            "POST", f"/api/v1/namespaces/{name}/pods/share/binding", binding(), "no pod", id=f"bind in {name}"
        )
        for name in ("kube-system", "kube-public", "kube-node-lease")
    ),
    pytest.param("DELETE", f"{RESERVATIONS}/foreign", None, "only reservation", id="delete what is no reservation"),
    pytest.param("PATCH", f"{RESERVATIONS}/own", IMAGE_CHANGED, "spec", id="change the agent's image"),
    pytest.param("POST", CLAIMS, claim("n", extended=False), "extended", id="create any claim"),
    pytest.param("DELETE", f"{CLAIMS}/users", None, "extended", id="delete a user's claim"),
    pytest.param("PATCH", f"{CLAIMS}/users", metadata(labels={"a": "b"}), "finalizer", id="change a claim's labels"),
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/taken",
        {"spec": {"claimRef": {**REFERENCE, "name": "other"}}},
        "belongs",
        id="give a volume to another claim",
    ),
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/taken",
        {"spec": {"claimRef": None}},
        "belongs",
        id="take a volume from its claim",
    ),
    *(
        pytest.param(
            "PATCH",
            f"/api/v1/persistentvolumes/{name}",
            {"spec": {"claimRef": {"uid": uid}}},
            named,
            id=f"have the data of a volume deleted by {why}",
        )
        for name, uid, named, why in (
            ("uid", "00000000-0000-0000-0000-000000000000", "changes no UID", "another UID"),
            ("uid", None, "changes no UID", "no UID"),
            ("bound", REFERENCE["uid"], "bound or released", "a UID after it is bound"),
        )
    ),
    pytest.param(
        "PATCH",
        BOUND_VOLUME,
        metadata(annotations={names.BOUND_BY_CONTROLLER: "yes"}),
        "bound or released",
        id="write a bound volume",
    ),
    *(
        pytest.param("POST", path, configmap(name), named, id=f"create a ConfigMap {why}")
        for path, name, named, why in (
            (f"{CORE}/configmaps", "settings", "named so", "of any name"),
            (RESERVATIONS.replace("/pods", "/configmaps"), "x-0", "reservation pods", "beside reservation pods"),
        )
    ),
    *(
        pytest.param("POST", RESERVATIONS, reservation(change), "probes of the pod itself", id=f"have {why}")
        for why, change in OF_OTHERS.items()
    ),
    pytest.param(
        "POST",
        RESERVATIONS,
        reservation(dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.1"]}),
        "name servers",
        id="have other name servers",
    ),
    pytest.param(
        "POST",
        RESERVATIONS,
        reservation(securityContext={"supplementalGroups": [0]}),
        "security context",
        id="have the group root",
    ),
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/free",
        {"spec": {"persistentVolumeReclaimPolicy": "Delete"}},
        "claimRef",
        id="have a volume deleted",
    ),
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/free",
        {"spec": {"capacity": {"storage": "9Gi"}}},
        "claimRef",
        id="enlarge a volume",
    ),
    pytest.param(
        "PATCH",
        f"{CORE}/persistentvolumeclaims/data",
        metadata(labels={"a": "b"}, annotations={names.SELECTED_NODE: "n"}),
        "selected-node",
        id="change a claim's labels along with its node",
    ),
]


@pytest.mark.parametrize(("method", "path", "body"), RECONCILER_MAY)
def test_the_reconciler_may(policies: Policies, method: str, path: str, body: Any) -> None:
    assert policies.denial(policies.as_user(RECONCILER), method, path + DRY, body) == ""


@pytest.mark.parametrize(("method", "path", "body", "named"), RECONCILER_MAY_NOT)
def test_a_stolen_token_of_the_reconciler_cannot(
    policies: Policies, method: str, path: str, body: Any, named: str
) -> None:
    denial = policies.denial(policies.as_user(RECONCILER), method, path + DRY, body)
    assert "the reconciler" in denial, "the request was allowed"
    assert named in denial


def test_by_the_status_of_a_claim_nothing_else_of_it_changes(policies: Policies) -> None:
    """No policy covers the status: the API server itself ignores the rest."""
    body = {**ALLOCATED, "metadata": {"name": "users", "labels": {"a": "b"}, "finalizers": ["x.example/y"]}}
    stored_claim = policies.as_user(RECONCILER).request("PUT", f"{CLAIMS}/users/status{DRY}", body)
    assert "labels" not in stored_claim["metadata"]
    assert "finalizers" not in stored_claim["metadata"]


OWN, NEXT = f"{RESERVATIONS}/own", f"{RESERVATIONS}/next"
DEVICE = metadata(annotations={names.RESERVED_DEVICE: "GPU-1"})
AGENT_MAY_NOT = [
    pytest.param(NEXT, DEVICE, "runs in", id="another node's device"),
    pytest.param(OWN, metadata(annotations={"a": "b"}), "only the annotation", id="another annotation"),
    pytest.param(OWN, metadata(labels={GROUP: None}), "", id="its group"),
    pytest.param(OWN, IMAGE_CHANGED, "only the annotation", id="its image"),
    pytest.param(OWN, metadata(finalizers=["x.example/y"]), "only the annotation", id="its finalizers"),
    *(
        pytest.param(
            OWN, metadata(annotations={names.RESERVED_DEVICE: device}), "one device", id=f"device {device!r:.20}"
        )
        for device in (
            "all",
            "All",
            "void",
            "none",
            "",
            None,
            "GPU-1,GPU-2",
            "GPU-1\n",
            "GPU 1",
            "GPU-" + "1" * 64,
            "*",
        )
    ),
]


def test_an_agent_can_report_the_device_of_its_own_pod(policies: Policies, own_uid: str) -> None:
    assert policies.denial(policies.as_user(AGENT, own_uid), "PATCH", OWN + DRY, DEVICE) == ""


@pytest.mark.parametrize(("path", "body", "named"), AGENT_MAY_NOT)
def test_an_agent_cannot_change(policies: Policies, own_uid: str, path: str, body: Any, named: str) -> None:
    denial = policies.denial(policies.as_user(AGENT, own_uid), "PATCH", path + DRY, body)
    assert denial, "the request was allowed"
    assert named in denial


@pytest.mark.parametrize(
    ("change", "denied"),
    [
        pytest.param({"data": {"tls.crt": "eA==", "ca.crt": "eA=="}}, False, id="its certificates"),
        pytest.param({"metadata": {"annotations": {names.ANNOTATION_CA_SWITCHED_AT: "x"}}}, False, id="its time"),
        pytest.param({"metadata": {"labels": {"owner": "helm", "status": "deployed"}}}, True, id="a release of Helm"),
        pytest.param(
            {"metadata": {"annotations": {"kubernetes.io/service-account.name": "x"}}}, True, id="another annotation"
        ),
        pytest.param({"metadata": {"finalizers": ["x.example/y"]}}, True, id="a finalizer"),
        pytest.param({"immutable": True}, True, id="immutable"),
        pytest.param({"data": {"x": "eA=="}}, True, id="another key"),
        pytest.param({"data": {"ca.crt": "eHh4" * 200_000}}, True, id="600 KB"),
    ],
)
def test_of_the_secret_of_its_ca_the_webhooks_token_changes_only_the_ca(
    policies: Policies, change: dict[str, Any], denied: bool
) -> None:
    secret = policies.cluster.api.get(SECRET)
    for field, value in change.get("metadata", {}).items():
        secret["metadata"][field] = (
            {**(secret["metadata"].get(field) or {}), **value} if isinstance(value, dict) else value
        )
    secret |= {field: value for field, value in change.items() if field != "metadata"}
    denial = policies.denial(policies.as_user(WEBHOOK), "PUT", SECRET + DRY, secret)
    assert ("of the Secret of its CA the webhook" in denial) is denied


def test_an_agents_token_without_a_pod_has_no_rights(policies: Policies) -> None:
    assert "issued to that pod" in policies.denial(policies.as_user(AGENT), "PATCH", OWN + DRY, DEVICE)


@contextmanager
def images_rewritten(policies: Policies, mirror: str) -> Iterator[None]:
    """Every new pod gets images of a mirror, as by a cluster's own admission policies."""
    expression = f"""Object{{spec: Object.spec{{containers: object.spec.containers.map(c,
        Object.spec.containers{{name: c.name, image: '{mirror}' + c.image}})}}}}"""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    policy = {
        "metadata": {"name": "mirror"},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": rules},
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        },
    }
    group, api = "/apis/admissionregistration.k8s.io/v1", policies.cluster.api
    api.post(f"{group}/mutatingadmissionpolicies", policy)
    bound = {"metadata": {"name": "mirror"}, "spec": {"policyName": "mirror"}}
    api.post(f"{group}/mutatingadmissionpolicybindings", bound)
    try:
        wait_until(
            lambda: api.post(f"{CORE}/pods{DRY}", pod("probe"))["spec"]["containers"][0]["image"].startswith(mirror),
            "the image of a new pod to be rewritten",
        )
        yield
    finally:
        remove(api, f"{group}/mutatingadmissionpolicybindings/mirror")
        remove(api, f"{group}/mutatingadmissionpolicies/mirror")
        wait_until(
            lambda: (
                not api.post(f"{CORE}/pods{DRY}", pod("probe"))["spec"]["containers"][0]["image"].startswith(mirror)
            ),
            "the images to be left as they are",
        )


@pytest.mark.parametrize(
    ("mirror", "named"),
    [
        pytest.param("mirror.example:5000/", "", id="a listed mirror"),
        pytest.param("other.example/", f"the image other.example/{IMAGE} is none of the agent", id="another mirror"),
    ],
)
def test_reservation_pods_whose_image_the_cluster_rewrites(policies: Policies, mirror: str, named: str) -> None:
    with images_rewritten(policies, mirror):
        denial = policies.denial(policies.as_user(RECONCILER), "POST", RESERVATIONS + DRY, reservation())
    assert named in denial
    assert bool(denial) is bool(named)
    assert "list it in policy.agentImages" in denial or not named


def test_the_labels_that_the_api_server_adds_to_a_binding_are_accepted(policies: Policies) -> None:
    """The admission plugin PodTopologyLabels copies them from the node."""
    zone = {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r"}
    policies.cluster.api.post("/api/v1/nodes", {"metadata": {"name": "node", "labels": zone}})
    try:
        path = f"{CORE}/pods/share/binding{DRY}"
        assert policies.denial(policies.as_user(RECONCILER), "POST", path, binding(OF_PLUGINS)) == ""
    finally:
        remove(policies.cluster.api, "/api/v1/nodes/node")


def test_under_the_restricted_standard_the_agent_still_runs_alone(policies: Policies) -> None:
    api, reconciler = policies.cluster.api, policies.as_user(RECONCILER)
    api.patch(RESERVATIONS.rpartition("/")[0], {"metadata": {"labels": {PSA: "restricted"}}})
    try:
        assert policies.denial(reconciler, "POST", RESERVATIONS + DRY, reservation()) == ""
        second = reservation(containers=beside_the_agent(securityContext=CONTEXT))
        assert "only container" in policies.denial(reconciler, "POST", RESERVATIONS + DRY, second)
    finally:
        api.patch(RESERVATIONS.rpartition("/")[0], {"metadata": {"labels": {PSA: None}}})
