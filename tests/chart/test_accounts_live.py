"""What a stolen token of the reconciler or of an agent can do on a real API server, given the policies.

RBAC allows each request; a policy of the account denies it, or none does.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.cluster import Cluster
from shared.api import names
from tests.chart.policies import AGENT, DRY, RECONCILER, RESERVATIONS, Policies, installed, remove
from tests.chart.rendering import Chart

CORE, SYSTEM = "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"
EXCLUDED = "/api/v1/namespaces/kube-public"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
GROUP, SHARING = names.LABEL_GPU_GROUP, names.LABEL_GPU_SHARING
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "share", "uid": "11111111-2222-4333-8444-555555555555"}
IMAGE = "registry.example/bowline:0.1.0"
CONFIG = {"namespaces": {"exclude": ["kube-public"]}}
VALUES = {"image": {"registry": "registry.example"}, "config": CONFIG}
DEVICES = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
EXTENDED = {names.EXTENDED_RESOURCE_CLAIM: "true"}


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "registry.example/app:1"}]
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}


def configmap(name: str, *, labelled: bool = True, owned: bool = True) -> dict[str, Any]:
    labels = {SHARING: "true"} if labelled else {}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [OWNER] if owned else []}}


def reservation(**spec: Any) -> dict[str, Any]:
    container = {"name": names.RESERVATION_CONTAINER, "image": IMAGE, **spec.pop("container", {})}
    wanted = {"serviceAccountName": names.RESERVATION_SERVICE_ACCOUNT, "containers": [container], **spec}
    return {"metadata": {"name": "new", "labels": {"app": names.RESERVATION_APP, GROUP: "g"}}, "spec": wanted}


def claim(name: str, *, extended: bool = True, owned: bool = True) -> dict[str, Any]:
    metadata = {
        "name": name,
        "annotations": EXTENDED if extended else {},
        "ownerReferences": [OWNER] if owned else [],
    }
    return {"metadata": metadata, "spec": DEVICES}


def volume(name: str, **spec: Any) -> dict[str, Any]:
    wanted = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}, **spec}
    return {"metadata": {"name": name}, "spec": wanted}


def metadata(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


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
    (
        f"{CORE}/persistentvolumeclaims",
        {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    ),
    (
        RESERVATIONS,
        {**reservation(), "metadata": {"name": "own", "labels": {"app": names.RESERVATION_APP, GROUP: "g"}}},
    ),
    (
        RESERVATIONS,
        {**reservation(), "metadata": {"name": "next", "labels": {"app": names.RESERVATION_APP, GROUP: "h"}}},
    ),
    (RESERVATIONS, pod("foreign")),
]


@pytest.fixture(scope="module")
def policies(chart: Chart, chart_cluster: Cluster) -> Iterator[Policies]:
    """The policies in force over one object of each kind."""
    api = chart_cluster.api
    with installed(chart_cluster, chart.render(VALUES)) as made:
        for path, body in STORED:
            api.post(path, body)
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
READY = {"type": "Ready", "status": "True", "lastTransitionTime": None}
REFERENCE = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "uid": "u"}
SELECTED = metadata(annotations={names.SELECTED_NODE: "n"})
HOST_PATH = [{"name": "h", "hostPath": {"path": "/"}}]
PRIVILEGED = {"securityContext": {"privileged": True}}
RECONCILER_MAY = [
    pytest.param("PATCH", POD, LABELLED, id="label a sharing pod"),
    pytest.param("PATCH", STATUS, {"status": {"conditions": [CONDITION]}}, id="write the condition PodBound"),
    pytest.param("POST", f"{CORE}/configmaps", configmap("new-0"), id="create a share's ConfigMap"),
    pytest.param("DELETE", f"{CORE}/configmaps/share-0", None, id="delete a share's ConfigMap"),
    pytest.param("DELETE", f"{CORE}/configmaps/older-i0-evar", None, id="delete one of an earlier version"),
    pytest.param("POST", RESERVATIONS, reservation(), id="create a reservation pod"),
    pytest.param("DELETE", f"{RESERVATIONS}/own", None, id="delete a reservation pod"),
    pytest.param("POST", CLAIMS, claim("new"), id="create the claim of extended resources"),
    pytest.param("DELETE", f"{CLAIMS}/extended", None, id="delete the claim of extended resources"),
    pytest.param(
        "PATCH", f"{CLAIMS}/users", metadata(finalizers=[names.RESOURCE_CLAIM_PROTECTION]), id="protect any claim"
    ),
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
    pytest.param("PATCH", POD, metadata(labels={"app": "y"}), "only the labels", id="change another label"),
    pytest.param("PATCH", POD, metadata(labels={"app": None}), "only the labels", id="remove another label"),
    pytest.param("PATCH", POD, metadata(annotations={"a": "c"}), "only the labels", id="change an annotation"),
    pytest.param("PATCH", POD, metadata(finalizers=["x.example/y"]), "only the labels", id="add a finalizer"),
    pytest.param("PATCH", POD, metadata(ownerReferences=[OWNER]), "only the labels", id="change owners"),
    pytest.param("PATCH", f"{SYSTEM}/pods/share", LABELLED, "excluded", id="label a pod in kube-system"),
    pytest.param("PATCH", f"{EXCLUDED}/pods/share", LABELLED, "excluded", id="label a pod in an excluded namespace"),
    pytest.param("PATCH", STATUS, metadata(labels={"app": "y"}), "metadata", id="change labels by the status"),
    pytest.param("PATCH", STATUS, {"status": {"podIP": "10.0.0.9"}}, "only the condition", id="change a pod's IP"),
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
        "POST", RESERVATIONS, reservation(hostPID=True), "only reservation", id="run in the node's namespaces"
    ),
    pytest.param(
        "POST", RESERVATIONS, reservation(volumes=HOST_PATH), "only reservation", id="mount the node's files"
    ),
    pytest.param("POST", RESERVATIONS, reservation(container=PRIVILEGED), "only reservation", id="run privileged"),
    pytest.param(
        "POST", RESERVATIONS, reservation(container={"image": "evil"}), "only reservation", id="run another image"
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
    pytest.param(
        "PATCH",
        "/api/v1/persistentvolumes/free",
        {"spec": {"persistentVolumeReclaimPolicy": "Delete"}},
        "claimRef",
        id="have a volume deleted",
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


OWN, NEXT = f"{RESERVATIONS}/own", f"{RESERVATIONS}/next"
DEVICE = metadata(annotations={names.RESERVED_DEVICE: "GPU-1"})
AGENT_MAY_NOT = [
    pytest.param(NEXT, DEVICE, "runs in", id="another node's device"),
    pytest.param(OWN, metadata(annotations={"a": "b"}), "only the annotation", id="another annotation"),
    pytest.param(OWN, metadata(labels={GROUP: None}), "", id="its group"),
    pytest.param(OWN, IMAGE_CHANGED, "only the annotation", id="its image"),
    pytest.param(OWN, metadata(finalizers=["x.example/y"]), "only the annotation", id="its finalizers"),
]


def test_an_agent_can_report_the_device_of_its_own_pod(policies: Policies, own_uid: str) -> None:
    assert policies.denial(policies.as_user(AGENT, own_uid), "PATCH", OWN + DRY, DEVICE) == ""


@pytest.mark.parametrize(("path", "body", "named"), AGENT_MAY_NOT)
def test_an_agent_cannot_change(policies: Policies, own_uid: str, path: str, body: Any, named: str) -> None:
    denial = policies.denial(policies.as_user(AGENT, own_uid), "PATCH", path + DRY, body)
    assert denial, "the request was allowed"
    assert named in denial


def test_an_agents_token_without_a_pod_has_no_rights(policies: Policies) -> None:
    assert "issued to that pod" in policies.denial(policies.as_user(AGENT), "PATCH", OWN + DRY, DEVICE)
