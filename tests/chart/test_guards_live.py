"""The objects that hold shared devices, changed by tenants, agents and the reconciler on a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.chart.policies import AGENT, DRY, RECONCILER, RESERVATIONS, Policies, installation, remove
from tests.chart.rendering import Chart
from tests.waiting import wait_until

CORE, SYSTEM = "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"
TENANT, BINDER = "tenant", "system:serviceaccount:kai-scheduler:binder"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACES = "system:serviceaccount:kube-system:namespace-controller"
GROUP, GROUPS, SHARING = names.LABEL_GPU_GROUP, f"{names.LABEL_GPU_GROUP}/g", names.LABEL_GPU_SHARING
HELD = {GROUP: "g", GROUPS: "g", SHARING: "true", "app": "mine"}
# More than the policy compares.
MANY = {f"example.com/{number}": "x" for number in range(300)}


def pod(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "registry.example/app:1"}]}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations or {}}, "spec": spec}


def share_map(name: str, **metadata: Any) -> dict[str, Any]:
    labels = {SHARING: "true"}
    return {"metadata": {"name": name, "labels": labels, **metadata}, "data": {names.VISIBLE_DEVICES: "GPU-1"}}


@pytest.fixture(scope="module")
def policies(chart: Chart, chart_cluster: Cluster) -> Iterator[Policies]:
    """The policies in force, with a sharing pod, its ConfigMap and its reservation."""
    api = chart_cluster.api
    resources = "pods,pods/status,pods/binding,pods/ephemeralcontainers,configmaps,namespaces"
    rules = ["--verb=get,create,update,patch,delete", f"--resource={resources}"]
    chart_cluster.kubectl("create", "clusterrole", "tenants", *rules)
    for user in (TENANT, BINDER, AGENT):
        name = user.replace(":", "-")
        chart_cluster.kubectl("create", "clusterrolebinding", name, "--clusterrole=tenants", f"--user={user}")
    with installation(
        chart_cluster, chart.render({"policy": {"accounts": False, "trusted": {"users": [BINDER]}}})
    ) as made:
        api.post(f"{CORE}/pods", pod("held", HELD))
        api.post(f"{CORE}/pods", pod("plain", {"app": "mine"}))
        api.post(f"{CORE}/pods", pod("large", MANY | HELD))
        api.post(f"{CORE}/pods", pod("fractioned", {}, {NV_DEVICES: "GPU-1", NV_PORTION: "0.5"}))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "held", "uid": "held"}
        api.post(f"{CORE}/configmaps", share_map("held-0", ownerReferences=[owner]))
        api.post(f"{CORE}/configmaps", share_map("orphan-0"))
        api.post(f"{CORE}/configmaps", {"metadata": {"name": "plain"}})
        labels = {"app": names.RESERVATION_APP, GROUP: "g"}
        api.post(RESERVATIONS, pod("reservation", labels, {names.RESERVED_DEVICE: "GPU-1", "other": "x"}))
        yield made
    for path in (POD, PLAIN, LARGE, FRACTIONED, RESERVATION, MAP, ORPHAN, f"{CORE}/configmaps/plain"):
        remove(api, path)
    bindings = [f"clusterrolebinding/{user.replace(':', '-')}" for user in (TENANT, BINDER, AGENT)]
    chart_cluster.kubectl("delete", "clusterrole/tenants", *bindings)


def labels(changes: dict[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"labels": changes}}


POD, STATUS, PLAIN = f"{CORE}/pods/held", f"{CORE}/pods/held/status", f"{CORE}/pods/plain"
MAP, RESERVATION = f"{CORE}/configmaps/held-0", f"{RESERVATIONS}/reservation"
LARGE, ORPHAN = f"{CORE}/pods/large", f"{CORE}/configmaps/orphan-0"


def binding(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "plain", **metadata}, "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}}


NV_DEVICES, NV_PORTION = (f"{names.NV_CONTAINER}main{suffix}" for suffix in names.NV_OWNED)
FRACTIONED, FRACTIONED_STATUS = f"{CORE}/pods/fractioned", f"{CORE}/pods/fractioned/status"


def annotations(changes: dict[str, str | None] | None) -> dict[str, Any]:
    return {"metadata": {"annotations": changes}}


# What container runtimes and their NRI plugins read as names of devices.
RUNTIME_DEVICES = (
    *("nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.main", "cdi.k8s.io/any", "vendor.example.cdi.k8s.io/pod"),
    *("cdi-devices.nri.io/pod", "cdi-devices.noderesource.dev/container.main", "devices.noderesource.dev/pod"),
    "devices.nri.io/container.main",
)
# What KAI-Scheduler, or a plugin after the bind, reads of a pod.
FACTS = (
    f"{names.RESOURCE_MIG_PREFIX}1g.5gb",
    names.RECEIVED_RESOURCE_TYPE,
    "kai.scheduler/numa-placement-predicted",
    "kai.scheduler/numa-memory-groups-predicted",
    names.PREPARED_FOR,
    names.LABELLED_FOR,
)
DEVICE = {"metadata": {"annotations": {names.RESERVED_DEVICE: "GPU-2"}}}
DENIED = [
    pytest.param(TENANT, "POST", f"{CORE}/pods", pod("new", {GROUP: "g"}), GROUP, id="a new pod of a group"),
    pytest.param(TENANT, "POST", f"{CORE}/pods", pod("new", {GROUPS: "g"}), GROUPS, id="a new pod of several groups"),
    pytest.param(
        TENANT, "POST", f"{CORE}/pods", pod("new", {SHARING: "no"}), SHARING, id="a new pod marked as sharing"
    ),
    pytest.param(TENANT, "POST", f"{SYSTEM}/pods", pod("new", {GROUP: "g"}), GROUP, id="a group in kube-system"),
    pytest.param(TENANT, "PATCH", POD, labels({GROUP: None}), GROUP, id="leaving a group"),
    pytest.param(
        TENANT, "PATCH", POD, labels({GROUPS: None, SHARING: None}), GROUPS, id="leaving one of several groups"
    ),
    pytest.param(TENANT, "PATCH", POD, {"metadata": {"labels": None}}, GROUP, id="removing every label"),
    pytest.param(TENANT, "PATCH", POD, labels({GROUP: "other"}), GROUP, id="changing to another group"),
    pytest.param(TENANT, "PATCH", PLAIN, labels({f"{GROUP}/x": "x"}), f"{GROUP}/x", id="joining a group"),
    pytest.param(TENANT, "PATCH", STATUS, labels({GROUP: None}), GROUP, id="leaving by the status"),
    pytest.param(TENANT, "POST", f"{PLAIN}/binding", binding(labels={GROUP: "g"}), GROUP, id="a group by a Binding"),
    *(
        pytest.param(TENANT, "POST", f"{CORE}/pods", pod("new", {}, {name: "1"}), name, id=f"a new pod with {name}")
        for name in (NV_DEVICES, NV_PORTION, f"{names.NV_CONTAINER}absent{names.NV_DEVICES}", *RUNTIME_DEVICES)
    ),
    *(
        pytest.param(
            TENANT, "PATCH", FRACTIONED, annotations({name: "nvidia.com/gpu=all"}), name, id=f"{name} of a share"
        )
        for name in RUNTIME_DEVICES
    ),
    pytest.param(TENANT, "PATCH", PLAIN, annotations({NV_DEVICES: "GPU-1"}), NV_DEVICES, id="devices for a pod"),
    pytest.param(TENANT, "PATCH", FRACTIONED, annotations({NV_DEVICES: "GPU-2"}), NV_DEVICES, id="other devices"),
    pytest.param(TENANT, "PATCH", FRACTIONED, annotations({NV_PORTION: None}), NV_PORTION, id="all of the compute"),
    pytest.param(TENANT, "PATCH", FRACTIONED, annotations(None), NV_DEVICES, id="removing every annotation"),
    pytest.param(
        TENANT, "PATCH", FRACTIONED_STATUS, annotations({NV_PORTION: "1"}), NV_PORTION, id="compute by the status"
    ),
    pytest.param(
        TENANT,
        "POST",
        f"{PLAIN}/binding",
        binding(annotations={NV_DEVICES: "GPU-1"}),
        NV_DEVICES,
        id="devices by a Binding",
    ),
    *(
        pytest.param(TENANT, method, path, body, name, id=f"{name} {why}")
        for name in FACTS
        for method, path, body, why in (
            ("POST", f"{CORE}/pods", pod("new", {}, {name: "0"}), "of a new pod"),
            ("PATCH", PLAIN, annotations({name: "0"}), "of a pod"),
            ("PATCH", f"{PLAIN}/status", annotations({name: "0"}), "by the status"),
            ("POST", f"{PLAIN}/binding", binding(annotations={name: "0"}), "by a Binding"),
        )
    ),
    pytest.param(TENANT, "POST", f"{CORE}/configmaps", share_map("new-0"), SHARING, id="a ConfigMap like a share's"),
    pytest.param(TENANT, "PATCH", MAP, {"data": {names.VISIBLE_DEVICES: "all"}}, SHARING, id="another device"),
    pytest.param(TENANT, "PATCH", MAP, labels({SHARING: None}), SHARING, id="a share's ConfigMap without its label"),
    pytest.param(
        TENANT, "PATCH", f"{CORE}/configmaps/plain", labels({SHARING: "1"}), SHARING, id="label on any ConfigMap"
    ),
    pytest.param(TENANT, "DELETE", MAP, None, SHARING, id="deleting a share's ConfigMap"),
    pytest.param(TENANT, "PATCH", RESERVATION, DEVICE, names.RESERVED_DEVICE, id="a reserved device by a tenant"),
    pytest.param(TENANT, "PATCH", RESERVATION, labels({"app": None}), "app", id="a reservation hidden by a tenant"),
    pytest.param(AGENT, "PATCH", RESERVATION, labels({GROUP: None}), GROUP, id="a reservation's group by an agent"),
]
ALLOWED = [
    pytest.param(TENANT, "POST", f"{CORE}/pods", pod("new", {"app": "x"}), id="a pod with labels of its own"),
    pytest.param(
        TENANT, "POST", f"{CORE}/pods", {"metadata": {"name": "n"}, "spec": pod("", {})["spec"]}, id="no labels"
    ),
    pytest.param(TENANT, "PATCH", POD, labels({"app": "other", "new": "x"}), id="other labels of a sharing pod"),
    pytest.param(TENANT, "PATCH", STATUS, {"status": {"message": "x"}}, id="the status of a sharing pod"),
    pytest.param(
        TENANT,
        "PATCH",
        FRACTIONED,
        annotations({"x": "y", f"{names.NV_CONTAINER}main{names.NV_COMPUTE_MODE}": names.SM_SHARING}),
        id="annotations of the pod's author",
    ),
    pytest.param(TENANT, "PATCH", FRACTIONED, labels({"x": "y"}), id="a label of a pod with devices"),
    pytest.param(
        TENANT,
        "POST",
        f"{CORE}/pods",
        pod("build", {}, {"io.kubernetes.cri-o.Devices": "/dev/fuse", "mycdi.k8s.io/x": "y"}),
        id="a device that CRI-O allows",
    ),
    pytest.param(RECONCILER, "PATCH", FRACTIONED, annotations({NV_DEVICES: None}), id="the reconciler takes devices"),
    pytest.param(BINDER, "PATCH", FRACTIONED, annotations({NV_DEVICES: "x"}), id="a trusted user changes devices"),
    pytest.param(TENANT, "DELETE", POD, None, id="deleting a sharing pod"),
    pytest.param(TENANT, "POST", f"{PLAIN}/binding", binding(labels={"a": "b"}), id="other labels by a Binding"),
    pytest.param(
        TENANT, "PATCH", LARGE, {"metadata": {"annotations": {"a": "b"}}}, id="an annotation beside many labels"
    ),
    pytest.param(TENANT, "PATCH", f"{LARGE}/status", {"status": {"message": "x"}}, id="a status beside many labels"),
    pytest.param(BINDER, "PATCH", LARGE, labels({GROUP: "h"}), id="a trusted user changes one of many labels"),
    pytest.param(
        TENANT, "PATCH", f"{CORE}/configmaps/plain", {"data": {"a": "b"}}, id="a ConfigMap of the tenant's own"
    ),
    pytest.param(
        TENANT, "PATCH", RESERVATION, {"metadata": {"annotations": {"other": "y"}}}, id="another annotation"
    ),
    pytest.param(TENANT, "DELETE", ORPHAN, None, id="deleting a ConfigMap that its pod has left behind"),
    pytest.param(TENANT, "DELETE", RESERVATION, None, id="deleting a reservation pod, which RBAC must prevent"),
    pytest.param(AGENT, "PATCH", RESERVATION, DEVICE, id="the device by an agent, which has a policy of its own"),
    pytest.param(RECONCILER, "PATCH", POD, labels({GROUP: "h", GROUPS: None}), id="the reconciler changes groups"),
    pytest.param(RECONCILER, "DELETE", MAP, None, id="the reconciler deletes a share's ConfigMap"),
    pytest.param(BINDER, "PATCH", POD, labels({GROUP: "h"}), id="a trusted user changes groups"),
    pytest.param(COLLECTOR, "DELETE", MAP, None, id="the garbage collector deletes a share's ConfigMap"),
    pytest.param(NAMESPACES, "DELETE", MAP, None, id="the namespace controller deletes a share's ConfigMap"),
    pytest.param("", "PATCH", POD, labels({GROUP: None}), id="a member of a trusted group repairs by hand"),
]


@pytest.mark.parametrize(("user", "method", "path", "body", "named"), DENIED)
def test_objects_that_hold_a_device_cannot_be_changed_by(
    policies: Policies, user: str, method: str, path: str, body: Any, named: str
) -> None:
    denial = policies.denial(policies.as_user(user), method, path + DRY, body)
    assert "only" in denial, "the request was allowed"
    assert named in denial


@pytest.mark.parametrize(("user", "method", "path", "body"), ALLOWED)
def test_the_guards_allow(policies: Policies, user: str, method: str, path: str, body: Any) -> None:
    client = policies.as_user(user) if user else policies.cluster.api
    assert policies.denial(client, method, path + DRY, body) == ""


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", f"{CORE}/pods", pod("new", MANY), id="a new pod"),
        pytest.param("PATCH", LARGE, labels({GROUP: "other"}), id="a guarded label"),
        pytest.param("PATCH", LARGE, labels({"example.com/0": "y"}), id="any label"),
        pytest.param("PATCH", PLAIN, labels(dict(MANY)), id="labels of a small pod"),
    ],
)
def test_above_the_limit_labels_cannot_be_changed(policies: Policies, method: str, path: str, body: Any) -> None:
    denial = policies.denial(policies.as_user(TENANT), method, path + DRY, body)
    assert "a pod has at most 256" in denial
    assert "remove labels, or leave those of an existing pod as they are" in denial


def test_above_the_limit_annotations_cannot_be_changed(policies: Policies) -> None:
    tenant = policies.as_user(TENANT)
    denial = policies.denial(tenant, "POST", f"{CORE}/pods{DRY}", pod("new", {}, MANY))
    assert "a pod has at most 256, so that" in denial
    assert "remove annotations, or leave those of an existing pod as they are" in denial


def test_an_ephemeral_container_brings_no_devices(policies: Policies) -> None:
    """The API server ignores metadata in this subresource, so a debug container gets none of its own."""
    body = policies.cluster.api.get(FRACTIONED)
    body["metadata"]["annotations"][f"{names.NV_CONTAINER}debug{names.NV_DEVICES}"] = "GPU-2"
    body["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "registry.example/debug:1"}]
    stored_pod = policies.as_user(TENANT).request("PUT", f"{FRACTIONED}/ephemeralcontainers{DRY}", body)
    assert [container["name"] for container in stored_pod["spec"]["ephemeralContainers"]] == ["debug"]
    assert stored_pod["metadata"]["annotations"] == {NV_DEVICES: "GPU-1", NV_PORTION: "0.5"}


@pytest.mark.parametrize("name", ["kai-scale-adjust", "kai-resource-reservation"])
def test_a_user_makes_no_namespace_whose_pods_decide_about_gpus(policies: Policies, name: str) -> None:
    """A user who may create namespaces, but pods in only some of them."""
    user = policies.as_user("self-service")
    policies.cluster.kubectl("create", "clusterrole", "self-service", "--verb=create", "--resource=namespaces")
    policies.cluster.kubectl(
        "create", "clusterrolebinding", "self-service", "--clusterrole=self-service", "--user=self-service"
    )
    try:
        wait_until(lambda: _is_created(user, "self-made"), "the right to create namespaces")
        assert "only an account that may create pods in all namespaces" in policies.denial(
            user, "POST", f"/api/v1/namespaces{DRY}", {"metadata": {"name": name}}
        )
        assert _is_created(policies.as_user(TENANT), "kai-scale-adjust")
    finally:
        policies.cluster.kubectl("delete", "clusterrolebinding/self-service", "clusterrole/self-service")


def _is_created(client: Any, name: str) -> bool:
    try:
        client.request("POST", f"/api/v1/namespaces{DRY}", {"metadata": {"name": name}})
    except LocalApiError:
        return False
    return True
