"""What a stolen token of the reconciler, the webhook, an agent or `helm test` can do on a real API server, given the
policies; of the reconciler also with the objects of plugins.

RBAC allows each request; a policy of the account denies it, or none does.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.config import GpuSharingSettings
from bowline.localcluster.cluster import Cluster
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, NodeFacts
from bowline.plugins.gpu_sharing.reservation_pod import reservation_object
from tests.chart.policies import (
    AGENT,
    DRY,
    RECONCILER,
    RESERVATIONS,
    SECRET,
    TEST,
    WEBHOOK,
    Policies,
    installation,
    remove,
)
from tests.chart.rendering import Chart
from tests.waiting import wait_until

CORE, SYSTEM = "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"
EXCLUDED = "/api/v1/namespaces/infra"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GROUP, SHARING = names.LABEL_GPU_GROUP, names.LABEL_GPU_SHARING
NODE_IP = {"ip": "10.0.0.1"}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "share", "uid": "11111111-2222-4333-8444-555555555555"}
IMAGE = "registry.example/bowline:0.1.0"
CONFIG = {"namespaces": {"exclude": ["infra"]}}
SEATS, SEAT, QUOTAS = "/api/v1/namespaces/seats", "seats.example/pod", f"{CORE}/resourcequotas"
SEATS_ACCESS = {
    "plugin": "seats",
    "rules": [
        {"resource": "configmaps", "verbs": ["create", "patch"], "namespace": "seats", "namePrefix": "seat-"},
        {"resource": "configmaps", "verbs": ["create", "patch", "delete"], "label": SEAT},
        {"resource": "services", "verbs": ["create"], "namespace": "seats", "namePrefix": "seat-"},
        {"resource": "resourcequotas", "verbs": ["create", "delete"], "label": SEAT},
    ],
    "bindingLabels": ["seats.example/bound"],
    "podAnnotations": ["seats.example/granted"],
    "podConditions": ["seats.example/Ready"],
}
LISTED = ["mirror.example:5000/registry.example/bowline", "rewritten.example/", "loaded"]
VALUES = {
    "image": {"registry": "registry.example"},
    "config": CONFIG,
    "policy": {"agentImages": LISTED, "reservationKeys": ["mesh.example/injected"]},
    "reservation": {"resources": {"limits": {"memory": "32Gi"}}},
    "pluginAccess": [{"plugin": "own", "bindingAnnotations": ["own.example/x"]}, SEATS_ACCESS],
}
DEVICES = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
EXTENDED = {names.EXTENDED_RESOURCE_CLAIM: "true"}
UNLABELLED = "gpu-reservation-0123456789abcdef"


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "registry.example/app:1"}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}


def named(name: str, *labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": dict.fromkeys(labels, "x")}}


def configmap(name: str, *, labelled: bool = True, owned: bool = True) -> dict[str, Any]:
    labels = {SHARING: "true"} if labelled else {}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [OWNER] if owned else []}}


def reservation(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """The manifest of a reservation pod, with these fields of its container and its spec."""
    key, node = ObjectKey("default", "share"), NodeFacts(has_fake_gpus=True)
    request = DeviceRequest(key, key, "node", "g", node_facts=node)
    settings = GpuSharingConfig(reservation_priority_class_name="bowline-shares")
    body = reservation_object(request, GpuSharingSettings(agent_image=IMAGE), settings, name="new")
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


ELSEWHERE = {"required": {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]}]}}  # fmt: skip
REFERENCE = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "uid": "u"}
# Read by container runtimes and their plugins, network plugins, identity webhooks and service meshes.
FOREIGN_ANNOTATIONS = (
    *("cdi.k8s.io/x", "nvidia.cdi.k8s.io/pod", "io.kubernetes.cri-o.Devices", "devices.noderesource.dev/pod"),
    *("nvidia.com/container.resource-reservation.gpus.devices", "k8s.v1.cni.cncf.io/networks", "any.example/key"),
)
BOUND_VOLUME = "/api/v1/persistentvolumes/bound"
OF_A_JOB = configmap("job-0")
OF_A_JOB["metadata"]["ownerReferences"] = [OWNER | {"apiVersion": "batch/v1", "kind": "Job"}]
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
    (f"{CORE}/configmaps", OF_A_JOB),
    (f"{CORE}/persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}),
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
    *((f"{SEATS}/configmaps", named(name)) for name in ("seat-1", "other")),
    *((path, body) for path in (f"{CORE}/configmaps", QUOTAS) for body in (named("seat", SEAT), named("users"))),
]  # fmt: skip


@pytest.fixture(scope="module")
def policies(chart: Chart, chart_cluster: Cluster) -> Iterator[Policies]:
    """The policies in force over one object of each kind."""
    api = chart_cluster.api
    chart_cluster.make_namespace("infra")
    chart_cluster.make_namespace("seats")
    with installation(chart_cluster, chart.render(VALUES)) as made:
        for path, body in STORED:
            api.post(path, body)
        api.patch(f"{BOUND_VOLUME}/status", {"status": {"phase": "Bound"}})
        api.patch(STATUS, {"status": {"hostIP": NODE_IP["ip"], "hostIPs": [NODE_IP]}})
        reconciler = made.as_user(RECONCILER)
        wait_until(
            lambda: bool(made.denial(reconciler, "DELETE", f"{QUOTAS}/users{DRY}")), "policy reconciler-plugins"
        )
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
CONTEXT = reservation()["spec"]["containers"][0]["securityContext"]


def probe(**http: Any) -> dict[str, Any]:
    return {"httpGet": {"port": 8080, **http}}


def status(**fields: Any) -> dict[str, Any]:
    return {"status": fields}


def claim_ref(reference: dict[str, Any] | None) -> dict[str, Any]:
    return {"spec": {"claimRef": reference}}


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
PVS, CONFIGMAPS, BINDINGS = "/api/v1/persistentvolumes", f"{CORE}/configmaps", f"{CORE}/pods/share/binding"
RECONCILER_MAY: dict[str, tuple[str, str, Any]] = {
    "label a sharing pod": ("PATCH", POD, LABELLED),
    "write the condition PodBound": ("PATCH", STATUS, {"status": {"conditions": [CONDITION]}}),
    "write the condition DecisionFailed": ("PATCH", STATUS, {"status": {"conditions": [DECISION]}}),
    "nominate a pod to a node": ("PATCH", STATUS, {"status": {"nominatedNodeName": "n"}}),
    "create a share's ConfigMap": ("POST", CONFIGMAPS, configmap("new-0")),
    "delete a share's ConfigMap": ("DELETE", f"{CONFIGMAPS}/share-0", None),
    "delete one of an earlier version": ("DELETE", f"{CONFIGMAPS}/older-i0-evar", None),
    "create a reservation pod": ("POST", RESERVATIONS, reservation()),
    **{
        f"create one with the image {image}": ("POST", RESERVATIONS, reservation({"image": image}))
        for image in (
            *("registry.example/bowline:0.2.0", "registry.example/bowline@sha256:" + "a" * 64),
            *("registry.example/bowline", "mirror.example:5000/registry.example/bowline:0.1.0"),
            *("rewritten.example/any/bowline:1", "loaded:1", "loaded"),
        )
    },
    "create one with labels that the cluster adds": (*("POST", RESERVATIONS),
        described_reservation(labels={"mesh.example/injected": "x"})),
    "create one with annotations that the cluster adds": (*("POST", RESERVATIONS),
        described_reservation(annotations={"mesh.example/injected": "x", "openshift.io/scc": "x"})),
    "create one with a share's mode": (*("POST", RESERVATIONS),
        described_reservation(annotations={names.COMPUTE_MODE: names.SM_SHARING})),
    "create one with the configured memory": ("POST", RESERVATIONS, sized_reservation("limits", memory="32Gi")),
    "create one with requests of a LimitRange": ("POST", RESERVATIONS, sized_reservation("requests", memory="512Mi")),
    "bind with the plugins' annotations": ("POST", BINDINGS, binding(OF_PLUGINS)),
    "bind with one that a plugin declares": ("POST", BINDINGS, binding({"own.example/x": "y"})),
    "bind with a group": ("POST", BINDINGS, binding(labels={GROUP: "g", f"{GROUP}/h": "h"})),
    "delete a reservation pod": ("DELETE", f"{RESERVATIONS}/own", None),
    "delete one that has lost its labels": ("DELETE", f"{RESERVATIONS}/{UNLABELLED}", None),
    "label one that has lost its labels": (*("PATCH", f"{RESERVATIONS}/{UNLABELLED}"),
        metadata(labels={"app": names.RESERVATION_APP, GROUP: "g"})),
    "create the claim of extended resources": ("POST", CLAIMS, claim("new")),
    "delete the claim of extended resources": ("DELETE", f"{CLAIMS}/extended", None),
    "protect any claim": ("PATCH", f"{CLAIMS}/users", metadata(finalizers=[names.RESOURCE_CLAIM_PROTECTION])),
    "allocate any claim": ("PUT", f"{CLAIMS}/users/status", ALLOCATED),
    "bind a free volume": (*("PATCH", f"{PVS}/free"), {**metadata(annotations={names.BOUND_BY_CONTROLLER: "yes"}),
        "spec": {"claimRef": {**REFERENCE, "name": "data"}}}),
    "complete the reference of a volume that is kept for a claim": (*("PATCH", f"{PVS}/taken"),
        {"spec": {"claimRef": {**REFERENCE, "name": "taken"}}}),
    "select a claim's node": ("PATCH", f"{CORE}/persistentvolumeclaims/data", SELECTED),
    "create a plugin's object of the declared name": ("POST", f"{SEATS}/configmaps", named("seat-2")),
    "patch it": ("PATCH", f"{SEATS}/configmaps/seat-1", {"data": {"a": "b"}}),
    "create a plugin's object with the label": ("POST", CONFIGMAPS, named("any", SEAT)),
    "delete it": ("DELETE", f"{CONFIGMAPS}/seat", None),
    "create one of another kind": ("POST", QUOTAS, named("any", SEAT)),
    "annotate a pod as declared": ("PATCH", POD, metadata(annotations={"seats.example/granted": "1"})),
    "set a declared condition": ("PATCH", STATUS, status(conditions=[READY | {"type": "seats.example/Ready"}])),
    "bind with a declared label": ("POST", BINDINGS, binding(labels={"seats.example/bound": "x"})),
}  # fmt: skip
# Reservation pods that are denied, by words of the denial.
NO_RESERVATIONS: dict[str, dict[str, Any]] = {
    "only reservation": {"any pod": pod("n"), "another account": reservation(None, serviceAccountName="other")},
    "the image registry.example/bowline-x:1 is none of the agent: registry.example/bowline, ": {
        "a similar image": reservation({"image": "registry.example/bowline-x:1"})
    },
    "is none of the agent": {
        image: reservation({"image": image})
        for image in (
            *("evil", "registry.example/bowline/evil", "mirror.example:5000/registry.example/bowline2:1"),
            "loaded:5000/evil:1",  # of the registry at port 5000 of a host with the image's name
        )
    },
    **{
        f"no spec.{field}": {field: reservation(None, **{field: value})}
        for field, value in (
            *((host, True) for host in ("hostPID", "hostNetwork", "hostIPC", "shareProcessNamespace")),
            ("initContainers", beside_the_agent()[1:]),
            ("resourceClaims", [{"name": "c", "resourceClaimName": "c"}]),
        )
    },
    "only volume": {
        f"volume {kind} {source}": reservation(volumes=[{"name": "v", kind: source}])
        for kind, source in (
            *(
                ("hostPath", {"path": "/"}),
                ("secret", {"secretName": "s"}),
                ("configMap", {"name": "c"}),
                ("emptyDir", {}),
            ),
            ("projected", {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}),
            ("projected", {"sources": [{"configMap": {"name": "c"}}]}),
        )
    },
    "only container": {"a second container": reservation(containers=beside_the_agent())},
    "only container runs the agent": {
        "another command": reservation({"command": ["sh"]}),
        "other arguments": reservation({"args": ["-c", "evil"]}),
        "a variable with a value": reservation({"env": [{"name": "POD_NAME", "value": "all"}]}),
        "another variable": reservation({"env": [{"name": names.VISIBLE_DEVICES, "value": "all"}]}),
        "variables of a Secret": reservation({"envFrom": [{"secretRef": {"name": "s"}}]}),
        "a port of the node": reservation({"ports": [{"containerPort": 8080, "hostPort": 8080}]}),
        "a probe that runs a command": reservation({"livenessProbe": {"exec": {"command": ["evil"]}}}),
        "a hook that runs a command": reservation({"lifecycle": {"preStop": {"exec": {"command": ["evil"]}}}}),
    },
    "probes of the pod itself": {
        "a liveness probe of another host": reservation({"livenessProbe": probe(host="192.0.2.1")}),
        "a readiness probe of another host": reservation({"readinessProbe": probe(host="192.0.2.1")}),
        "a probe of another port": reservation({"readinessProbe": probe(port=80)}),
        "a probe with a header": reservation({"readinessProbe": probe(httpHeaders=[{"name": "a", "value": "b"}])}),
    },
    "security context": {
        **{
            f"a container with {key}": reservation({"securityContext": {**CONTEXT, **change}})
            for key, change in (
                ("privileges", {"privileged": True, "allowPrivilegeEscalation": None}),
                ("escalation", {"allowPrivilegeEscalation": True}),
                ("added capabilities", {"capabilities": {"add": ["NET_BIND_SERVICE"]}}),
                ("root", {"runAsUser": 0}),
                ("permission to be root", {"runAsNonRoot": False}),
                ("the group root", {"runAsGroup": 0}),
                ("another SELinux user", {"seLinuxOptions": {"user": "system_u"}}),
                ("unconfined seccomp", {"seccompProfile": {"type": "Unconfined"}}),
                ("unconfined AppArmor", {"appArmorProfile": {"type": "Unconfined"}}),
            )
        },
        "root by the pod": reservation(securityContext={"runAsUser": 0}),
        "the group root": reservation(securityContext={"supplementalGroups": [0]}),
    },
    "priority class": {
        name: reservation(priorityClassName=name) for name in ("system-node-critical", "system-cluster-critical")
    },
    "runtime class": {"another runtime class": reservation(runtimeClassName="x")},
    "name servers": {"other ones": reservation(dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.1"]})},
    **{key: {f"annotation {key}": described_reservation(annotations={key: "x"})} for key in FOREIGN_ANNOTATIONS},
    **{
        key: {f"label {key}": described_reservation(labels={key: "true"})}
        for key in ("azure.workload.identity/use", f"{GROUP}/h", "other.example/key")
    },
    "finalizers": {"a finalizer": described_reservation(finalizers=["x.example/y"])},
    "owners": {"an owner": described_reservation(ownerReferences=[OWNER])},
    "one nvidia.com/gpu": {
        "two GPUs": sized_reservation("limits", **{names.RESOURCE_GPU: "2"}),
        "a terabyte of memory": sized_reservation("limits", memory="1Ti"),
        "five CPUs": sized_reservation("requests", cpu="5"),
        "another resource": sized_reservation("limits", **{"example.com/device": "1"}),
    },
}
# Words of the denial, method, path, body.
RECONCILER_MAY_NOT: dict[str, tuple[str, str, str, Any]] = {
    "change an image": ("spec", "PATCH", POD, IMAGE_CHANGED),
    "change another label": ("its plugins declare", "PATCH", POD, metadata(labels={"app": "y"})),
    "hide a reservation": ("its plugins declare", "PATCH", f"{RESERVATIONS}/own", metadata(labels={"app": None})),
    "change an annotation": ("its plugins declare", "PATCH", POD, metadata(annotations={"a": "c"})),
    "add a finalizer": ("its plugins declare", "PATCH", POD, metadata(finalizers=["x.example/y"])),
    "add an owner": ("its plugins declare", "PATCH", POD, metadata(ownerReferences=[OWNER])),
    "label a pod in kube-system": ("excluded", "PATCH", f"{SYSTEM}/pods/share", LABELLED),
    "label a pod in an excluded namespace": ("excluded", "PATCH", f"{EXCLUDED}/pods/share", LABELLED),
    "change labels by the status": ("metadata", "PATCH", STATUS, metadata(labels={"app": "y"})),
    "change a pod's addresses": ("only the condition", "PATCH", STATUS, status(hostIPs=[NODE_IP, {"ip": "fd00::9"}])),
    "change what was observed": ("only the condition", "PATCH", STATUS, status(observedGeneration=99)),
    "remove a pod's addresses": ("only the condition", "PATCH", STATUS, status(hostIP=None, hostIPs=None)),
    "end a pod": ("only the condition", "PATCH", STATUS, status(phase="Failed")),
    "nominate one in kube-system": ("no pod", "PATCH", f"{SYSTEM}/pods/share/status", status(nominatedNodeName="n")),
    "make a pod ready": ("only the condition", "PATCH", STATUS, status(conditions=[READY])),
    "make an unlabelled ConfigMap": ("only ConfigMaps", "POST", CONFIGMAPS, configmap("n-0", labelled=False)),
    "make one without a pod": ("only ConfigMaps", "POST", CONFIGMAPS, configmap("n-0", owned=False)),
    "make one of a Job": ("only ConfigMaps", "POST", CONFIGMAPS, metadata(**OF_A_JOB["metadata"] | {"name": "n-0"})),
    "make one of any name": ("named so", "POST", CONFIGMAPS, configmap("settings")),
    "make one beside reservations": (*("reservation pods", "POST", RESERVATIONS.replace("/pods", "/configmaps")),
        configmap("x-0")),
    "make one in kube-system": ("namespace", "POST", f"{SYSTEM}/configmaps", configmap("n-0")),
    "delete one in kube-system": ("namespace", "DELETE", f"{SYSTEM}/configmaps/share-0", None),
    "delete one that its pod has left behind": ("owned", "DELETE", f"{CONFIGMAPS}/orphan-0", None),
    "delete one of a Job": ("owned", "DELETE", f"{CONFIGMAPS}/job-0", None),
    "delete a tenant's ConfigMap": ("owned", "DELETE", f"{CONFIGMAPS}/mine-0", None),
    "delete another pod's ConfigMap": ("owned", "DELETE", f"{CONFIGMAPS}/spark-driver", None),
    "bind with a label": ("no other", "POST", BINDINGS, binding(labels={"app": "evil"})),
    "bind with a group in an excluded namespace": (*("no other", "POST", f"{EXCLUDED}/pods/share/binding"),
        binding(labels={GROUP: "g"})),
    "bind with any annotation": ("other annotation", "POST", BINDINGS, binding({"x": "y"})),
    **{
        f"bind in {name}": ("no pod", "POST", f"/api/v1/namespaces/{name}/pods/share/binding", binding())
        for name in ("kube-system", "kube-public", "kube-node-lease")
    },
    "delete what is no reservation": ("only reservation", "DELETE", f"{RESERVATIONS}/foreign", None),
    "change the agent's image": ("spec", "PATCH", f"{RESERVATIONS}/own", IMAGE_CHANGED),
    "create any claim": ("extended", "POST", CLAIMS, claim("n", extended=False)),
    "create one of no pod": ("extended", "POST", CLAIMS, claim("n", owned=False)),
    "delete a user's claim": ("extended", "DELETE", f"{CLAIMS}/users", None),
    "change a claim's labels": ("finalizer", "PATCH", f"{CLAIMS}/users", metadata(labels={"a": "b"})),
    "add any finalizer to a claim": ("finalizer", "PATCH", f"{CLAIMS}/users", metadata(finalizers=["x.example/y"])),
    "change a claim's annotations": ("finalizer", "PATCH", f"{CLAIMS}/users", metadata(annotations={"a": "b"})),
    "give a volume to another claim": ("belongs", "PATCH", f"{PVS}/taken", claim_ref({**REFERENCE, "name": "other"})),
    "give it to one of another namespace": ("belongs", "PATCH", f"{PVS}/taken", claim_ref({"namespace": "infra"})),
    "take a volume from its claim": ("belongs", "PATCH", f"{PVS}/taken", claim_ref(None)),
    "have the data of a volume deleted by another UID": (*("changes no UID", "PATCH", f"{PVS}/uid"),
        claim_ref({"uid": "00000000-0000-0000-0000-000000000000"})),
    "have the data of a volume deleted by no UID": ("changes no UID", "PATCH", f"{PVS}/uid",
        claim_ref({"uid": None})),
    "complete the reference of a bound volume": (*("bound or released", "PATCH", f"{PVS}/bound"),
        claim_ref({"uid": REFERENCE["uid"]})),
    "write a bound volume": (*("bound or released", "PATCH", BOUND_VOLUME),
        metadata(annotations={names.BOUND_BY_CONTROLLER: "yes"})),
    "have a volume deleted": (*("claimRef", "PATCH", f"{PVS}/free"),
        {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
    "annotate a volume": ("claimRef", "PATCH", f"{PVS}/free", metadata(annotations={"a": "b"})),
    "move a volume": ("claimRef", "PATCH", f"{PVS}/free", {"spec": {"nodeAffinity": ELSEWHERE}}),
    "enlarge a volume": ("claimRef", "PATCH", f"{PVS}/free", {"spec": {"capacity": {"storage": "9Gi"}}}),
    "change a claim's labels along with its node": ("selected-node", "PATCH",
        f"{CORE}/persistentvolumeclaims/data",
        metadata(labels={"a": "b"}, annotations={names.SELECTED_NODE: "n"})),
    "annotate a claim": (*("selected-node", "PATCH", f"{CORE}/persistentvolumeclaims/data"),
        metadata(annotations={"a": "b"})),
    "create a plugin's object of another name": ("only ConfigMaps", "POST", f"{SEATS}/configmaps", named("x")),
    "patch another": ("only ConfigMaps", "PATCH", f"{SEATS}/configmaps/other", {"data": {"a": "b"}}),
    "delete what it may only create": ("only ConfigMaps", "DELETE", f"{SEATS}/configmaps/seat-1", None),
    "create one in another namespace": ("only ConfigMaps", "POST", CONFIGMAPS, named("seat-2")),
    "delete a user's": ("only ConfigMaps", "DELETE", f"{CONFIGMAPS}/users", None),
    "take a user's": ("only ConfigMaps", "PATCH", f"{CONFIGMAPS}/users", metadata(labels={SEAT: "x"})),
    "release one": ("only ConfigMaps", "PATCH", f"{CONFIGMAPS}/seat", metadata(labels={SEAT: None})),
    "create a plugin's in kube-system": ("namespace", "POST", f"{SYSTEM}/configmaps", named("x", SEAT)),
    "create another kind without the label": ("that its plugins declare", "POST", QUOTAS, named("any")),
    "delete another kind, a user's": ("that its plugins declare", "DELETE", f"{QUOTAS}/users", None),
    **{
        why: (words, "POST", RESERVATIONS, body)
        for words, bodies in NO_RESERVATIONS.items()
        for why, body in bodies.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body"), RECONCILER_MAY.values(), ids=RECONCILER_MAY)
def test_the_reconciler_may(policies: Policies, method: str, path: str, body: Any) -> None:
    assert policies.denial(policies.as_user(RECONCILER), method, path + DRY, body) == ""


@pytest.mark.parametrize(("words", "method", "path", "body"), RECONCILER_MAY_NOT.values(), ids=RECONCILER_MAY_NOT)
def test_a_stolen_token_of_the_reconciler_cannot(
    policies: Policies, words: str, method: str, path: str, body: Any
) -> None:
    denial = policies.denial(policies.as_user(RECONCILER), method, path + DRY, body)
    assert "the reconciler" in denial, "the request was allowed"
    assert words in denial


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
    pytest.param(OWN, metadata(labels={"a": "b"}), "only the annotation", id="its labels"),
    pytest.param(OWN, IMAGE_CHANGED, "only the annotation", id="its image"),
    pytest.param(OWN, metadata(finalizers=["x.example/y"]), "only the annotation", id="its finalizers"),
    *(
        pytest.param(
            OWN, metadata(annotations={names.RESERVED_DEVICE: device}), "one device", id=f"device {device!r:.20}"
        )
        for device in ("all", "void", "", None, "GPU-1,GPU-2", "GPU-1\n", "GPU-" + "1" * 64)
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
        pytest.param(
            {"metadata": {"annotations": {names.ANNOTATION_CA_SWITCHED_AT: "x" * 65}}}, True, id="a long time"
        ),
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


@pytest.mark.parametrize(
    ("verb", "namespace", "is_allowed"),
    [("create", "seats", True), ("create", "default", False), ("delete", "seats", False)],
)
def test_a_right_that_names_a_namespace_ends_there(
    policies: Policies, verb: str, namespace: str, is_allowed: bool
) -> None:
    attributes = {"verb": verb, "namespace": namespace, "resource": "services"}
    review = {"spec": {"user": RECONCILER, "resourceAttributes": attributes}}
    answer = policies.cluster.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is is_allowed


def test_a_stolen_token_of_the_test_creates_dry_runs_alone(policies: Policies) -> None:
    account, body = policies.as_user(TEST), pod("stolen")
    assert policies.denial(account, "POST", f"{CORE}/pods{DRY}", body) == ""
    assert "creates only dry runs" in policies.denial(account, "POST", f"{CORE}/pods", body)


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
    namespace, label = RESERVATIONS.rpartition("/")[0], "pod-security.kubernetes.io/enforce"
    api.patch(namespace, metadata(labels={label: "restricted"}))
    try:
        assert policies.denial(reconciler, "POST", RESERVATIONS + DRY, reservation()) == ""
        second = reservation(containers=beside_the_agent(securityContext=CONTEXT))
        assert "only container" in policies.denial(reconciler, "POST", RESERVATIONS + DRY, second)
    finally:
        api.patch(namespace, metadata(labels={label: None}))
