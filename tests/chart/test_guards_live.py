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
# KAI-Scheduler's exporter, and a tenant's account of the same name, with rights in one namespace.
EXPORTER, FALSE_EXPORTER = (
    f"system:serviceaccount:{name}:numa-placement-exporter" for name in ("kai-scheduler", "default")
)
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
    for user in (TENANT, BINDER, AGENT, EXPORTER):
        name = user.replace(":", "-")
        chart_cluster.kubectl("create", "clusterrolebinding", name, "--clusterrole=tenants", f"--user={user}")
    chart_cluster.kubectl("create", "rolebinding", "tenants", "--clusterrole=tenants", f"--user={FALSE_EXPORTER}")
    with installation(
        chart_cluster, chart.render({"policy": {"accounts": False, "trusted": {"users": [BINDER]}}})
    ) as made:
        chart_cluster.make_namespace("gpu-operator")
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
    bindings = [f"clusterrolebinding/{user.replace(':', '-')}" for user in (TENANT, BINDER, AGENT, EXPORTER)]
    chart_cluster.kubectl("delete", "clusterrole/tenants", "rolebinding/tenants", *bindings)


def labels(changes: dict[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"labels": changes}}


POD, STATUS, PLAIN = f"{CORE}/pods/held", f"{CORE}/pods/held/status", f"{CORE}/pods/plain"
MAP, RESERVATION = f"{CORE}/configmaps/held-0", f"{RESERVATIONS}/reservation"
LARGE, ORPHAN = f"{CORE}/pods/large", f"{CORE}/configmaps/orphan-0"


def binding(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "plain", **metadata}, "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}}


NV_DEVICES = f"{names.NV_CONTAINER}main{names.NV_DEVICES}"
# Of a pull request; the parser of released versions of KAI-Scheduler rejects it.
NV_PORTION = f"{names.NV_CONTAINER}main.gpu-compute.portion"
FRACTIONED, FRACTIONED_STATUS = f"{CORE}/pods/fractioned", f"{CORE}/pods/fractioned/status"


def annotations(changes: dict[str, str | None] | None) -> dict[str, Any]:
    return {"metadata": {"annotations": changes}}


# What container runtimes and their NRI plugins read as names of devices.
RUNTIME_DEVICES = (
    *("nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.main", "cdi.k8s.io/any", "vendor.example.cdi.k8s.io/pod"),
    *("cdi-devices.nri.io/pod", "cdi-devices.noderesource.dev/container.main", "devices.noderesource.dev/pod"),
    *("devices.nri.io/container.main", "devices.nri.io", "devices.noderesource.dev", "cdi-devices.nri.io"),
)
OBSERVED = ("kai.scheduler/numa-placement-observed", "kai.scheduler/numa-memory-groups-observed")
# What KAI-Scheduler, or a plugin after the bind, reads of a pod.
FACTS = (
    f"{names.RESOURCE_MIG_PREFIX}1g.5gb",
    names.RECEIVED_RESOURCE_TYPE,
    "kai.scheduler/numa-placement-predicted",
    "kai.scheduler/numa-memory-groups-predicted",
    *OBSERVED,
    names.PREPARED_FOR,
    names.LABELLED_FOR,
)
DEVICE = {"metadata": {"annotations": {names.RESERVED_DEVICE: "GPU-2"}}}
PODS, MAPS, BINDINGS = f"{CORE}/pods", f"{CORE}/configmaps", f"{PLAIN}/binding"
# Of a tenant, if no other user is named. Words of the denial, method, path, body.
DENIED: dict[str, tuple[str, str, str, Any]] = {
    "a new pod of a group": (GROUP, "POST", PODS, pod("new", {GROUP: "g"})),
    "a new pod of several groups": (GROUPS, "POST", PODS, pod("new", {GROUPS: "g"})),
    "a new pod marked as sharing": (SHARING, "POST", PODS, pod("new", {SHARING: "no"})),
    "a group in kube-system": (GROUP, "POST", f"{SYSTEM}/pods", pod("new", {GROUP: "g"})),
    "leaving a group": (GROUP, "PATCH", POD, labels({GROUP: None})),
    "leaving one of several groups": (GROUPS, "PATCH", POD, labels({GROUPS: None, SHARING: None})),
    "removing every label": (GROUP, "PATCH", POD, {"metadata": {"labels": None}}),
    "changing to another group": (GROUP, "PATCH", POD, labels({GROUP: "other"})),
    "joining a group": (f"{GROUP}/x", "PATCH", PLAIN, labels({f"{GROUP}/x": "x"})),
    "leaving by the status": (GROUP, "PATCH", STATUS, labels({GROUP: None})),
    "a group by a Binding": (GROUP, "POST", BINDINGS, binding(labels={GROUP: "g"})),
    **{
        f"a new pod with {name}": (name, "POST", PODS, pod("new", {}, {name: "1"}))
        for name in (NV_DEVICES, NV_PORTION, f"{names.NV_CONTAINER}absent{names.NV_DEVICES}", *RUNTIME_DEVICES)
    },
    "a runtime's devices for a share": (*(RUNTIME_DEVICES[0], "PATCH", FRACTIONED),
        annotations({RUNTIME_DEVICES[0]: "nvidia.com/gpu=all"})),
    "devices for a pod": (NV_DEVICES, "PATCH", PLAIN, annotations({NV_DEVICES: "GPU-1"})),
    "other devices": (NV_DEVICES, "PATCH", FRACTIONED, annotations({NV_DEVICES: "GPU-2"})),
    "all of the compute": (NV_PORTION, "PATCH", FRACTIONED, annotations({NV_PORTION: None})),
    "removing every annotation": (NV_DEVICES, "PATCH", FRACTIONED, annotations(None)),
    "compute by the status": (NV_PORTION, "PATCH", FRACTIONED_STATUS, annotations({NV_PORTION: "1"})),
    "devices by a Binding": (NV_DEVICES, "POST", BINDINGS, binding(annotations={NV_DEVICES: "GPU-1"})),
    **{
        f"{name} {why}": (name, method, path, body)
        for name in FACTS
        for method, path, body, why in (
            ("POST", PODS, pod("new", {}, {name: "0"}), "of a new pod"),
            ("PATCH", f"{PLAIN}/status", annotations({name: "0"}), "by the status"),
            ("POST", BINDINGS, binding(annotations={name: "0"}), "by a Binding"),
        )
    },
    "a ConfigMap like a share's": (SHARING, "POST", MAPS, share_map("new-0")),
    "another device": (SHARING, "PATCH", MAP, {"data": {names.VISIBLE_DEVICES: "all"}}),
    "a share's ConfigMap without its label": (SHARING, "PATCH", MAP, labels({SHARING: None})),
    "label on any ConfigMap": (SHARING, "PATCH", f"{MAPS}/plain", labels({SHARING: "1"})),
    "deleting a share's ConfigMap": (SHARING, "DELETE", MAP, None),
    "a reserved device by a tenant": (names.RESERVED_DEVICE, "PATCH", RESERVATION, DEVICE),
    "a reservation hidden": ("app", "PATCH", RESERVATION, labels({"app": None})),
}  # fmt: skip
# User, method, path, body; without a user, a member of system:masters.
ALLOWED: dict[str, tuple[str, str, str, Any]] = {
    "a pod with labels of its own": (TENANT, "POST", PODS, pod("new", {"app": "x"})),
    "no labels": (TENANT, "POST", PODS, {"metadata": {"name": "n"}, "spec": pod("", {})["spec"]}),
    "other labels of a sharing pod": (TENANT, "PATCH", POD, labels({"app": "other", "new": "x"})),
    "the status of a sharing pod": (TENANT, "PATCH", STATUS, {"status": {"message": "x"}}),
    "annotations of the pod's author": (*(TENANT, "PATCH", FRACTIONED), annotations({"x": "y",
        f"{names.NV_CONTAINER}main{names.NV_COMPUTE_MODE}": names.SM_SHARING})),
    "a device that CRI-O allows": (*(TENANT, "POST", PODS), pod("build", {},
        {"io.kubernetes.cri-o.Devices": "/dev/fuse", "mycdi.k8s.io/x": "y"})),
    "a pod of NVIDIA's GPU operator, in NRI mode": (*(TENANT, "POST", "/api/v1/namespaces/gpu-operator/pods"),
        pod("plugin", {}, {"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"})),
    "the reconciler takes devices": (RECONCILER, "PATCH", FRACTIONED, annotations({NV_DEVICES: None})),
    "a trusted user changes devices": (BINDER, "PATCH", FRACTIONED, annotations({NV_DEVICES: "x"})),
    "KAI-Scheduler's exporter reports a placement": (*(EXPORTER, "PATCH", PLAIN),
        annotations(dict.fromkeys(OBSERVED, "[]"))),
    "deleting a sharing pod": (TENANT, "DELETE", POD, None),
    "other labels by a Binding": (TENANT, "POST", BINDINGS, binding(labels={"a": "b"})),
    "an annotation beside many labels": (TENANT, "PATCH", LARGE, annotations({"a": "b"})),
    "a status beside many labels": (TENANT, "PATCH", f"{LARGE}/status", {"status": {"message": "x"}}),
    "a trusted user changes one of many labels": (BINDER, "PATCH", LARGE, labels({GROUP: "h"})),
    "a ConfigMap of the tenant's own": (TENANT, "PATCH", f"{MAPS}/plain", {"data": {"a": "b"}}),
    "another annotation of a reservation": (TENANT, "PATCH", RESERVATION, annotations({"other": "y"})),
    "deleting a ConfigMap that its pod has left behind": (TENANT, "DELETE", ORPHAN, None),
    "deleting a reservation pod, which RBAC must prevent": (TENANT, "DELETE", RESERVATION, None),
    "the device by an agent, which has a policy of its own": (AGENT, "PATCH", RESERVATION, DEVICE),
    "the reconciler changes groups": (RECONCILER, "PATCH", POD, labels({GROUP: "h", GROUPS: None})),
    "the reconciler deletes a share's ConfigMap": (RECONCILER, "DELETE", MAP, None),
    "a trusted user changes groups": (BINDER, "PATCH", POD, labels({GROUP: "h"})),
    "the garbage collector deletes a share's ConfigMap": (COLLECTOR, "DELETE", MAP, None),
    "the namespace controller deletes a share's ConfigMap": (NAMESPACES, "DELETE", MAP, None),
    "a member of a trusted group repairs by hand": ("", "PATCH", POD, labels({GROUP: None})),
}  # fmt: skip


@pytest.mark.parametrize(("words", "method", "path", "body"), DENIED.values(), ids=DENIED)
def test_objects_that_hold_a_device_cannot_be_changed_by(
    policies: Policies, words: str, method: str, path: str, body: Any
) -> None:
    denial = policies.denial(policies.as_user(TENANT), method, path + DRY, body)
    assert "only" in denial, "the request was allowed"
    assert words in denial


def test_an_agent_changes_no_group_of_its_reservation(policies: Policies) -> None:
    denial = policies.denial(policies.as_user(AGENT), "PATCH", RESERVATION + DRY, labels({GROUP: None}))
    assert GROUP in denial


@pytest.mark.parametrize(("user", "fact"), [(EXPORTER, FACTS[2]), (EXPORTER, GROUP), (FALSE_EXPORTER, OBSERVED[0])])
def test_an_exporter_writes_nothing_else_and_needs_rights_on_all_pods(
    policies: Policies, user: str, fact: str
) -> None:
    change = {"metadata": {"annotations": {fact: "x"}, "labels": {fact: "x"}}}
    assert fact in policies.denial(policies.as_user(user), "PATCH", PLAIN + DRY, change)


@pytest.mark.parametrize(("user", "method", "path", "body"), ALLOWED.values(), ids=ALLOWED)
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


@pytest.mark.parametrize("name", ["kai-scale-adjust", "kai-resource-reservation", "gpu-operator"])
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
