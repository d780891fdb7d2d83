"""What the reconciler can write of a plugin's objects on a real API server: those that the plugin declares."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.localcluster.cluster import Cluster
from tests.chart.policies import DRY, RECONCILER, Policies, installation, remove
from tests.chart.rendering import Chart
from tests.waiting import wait_until

SEATS, DEFAULT = "/api/v1/namespaces/seats", "/api/v1/namespaces/default"
LABEL = "seats.example/pod"
QUOTAS = f"{DEFAULT}/resourcequotas"
ACCESS = {
    "plugin": "seats",
    "rules": [
        {"resource": "configmaps", "verbs": ["create", "patch"], "namespace": "seats", "namePrefix": "seat-"},
        {"resource": "configmaps", "verbs": ["create", "patch", "delete"], "label": LABEL},
        {"resource": "services", "verbs": ["create"], "namespace": "seats", "namePrefix": "seat-"},
        {"resource": "resourcequotas", "verbs": ["create", "delete"], "label": LABEL},
    ],
    "bindingLabels": ["seats.example/bound"],
    "podAnnotations": ["seats.example/granted"],
    "podConditions": ["seats.example/Ready"],
}
POD = {"metadata": {"name": "seated"}, "spec": {"containers": [{"name": "main", "image": "registry.example/app:1"}]}}


def named(name: str, label: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {label: "x"} if label else {}}}


def metadata(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


def condition(kind: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": None}]}}


def binding(label: str) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
    return {"metadata": {"name": "seated", "labels": {label: "x"}}, "target": target}


STORED = [
    (f"{SEATS}/configmaps", named("seat-1")),
    (f"{SEATS}/configmaps", named("other")),
    (f"{DEFAULT}/configmaps", named("labelled", LABEL)),
    (f"{DEFAULT}/configmaps", named("users")),
    (QUOTAS, named("labelled", LABEL)),
    (QUOTAS, named("users")),
    (f"{DEFAULT}/pods", POD),
]


@pytest.fixture(scope="module")
def policies(chart: Chart, chart_cluster: Cluster) -> Iterator[Policies]:
    """The policies in force over objects of the plugin and of others."""
    api = chart_cluster.api
    chart_cluster.make_namespace("seats")
    with installation(chart_cluster, chart.render({"pluginAccess": [ACCESS]})) as made:
        for path, body in STORED:
            api.post(path, body)
        reconciler = made.as_user(RECONCILER)
        wait_until(
            lambda: bool(made.denial(reconciler, "DELETE", f"{QUOTAS}/users{DRY}")),
            "a denial by policy reconciler-plugins",
        )
        yield made
        for path, body in STORED:
            remove(api, f"{path}/{body['metadata']['name']}")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", f"{SEATS}/configmaps", named("seat-2"), id="create one of the declared name"),
        pytest.param("PATCH", f"{SEATS}/configmaps/seat-1", {"data": {"a": "b"}}, id="patch it"),
        pytest.param("POST", f"{DEFAULT}/configmaps", named("any", LABEL), id="create one with the label"),
        pytest.param("DELETE", f"{DEFAULT}/configmaps/labelled", None, id="delete it"),
        pytest.param("POST", QUOTAS, named("any", LABEL), id="create an object of another kind"),
        pytest.param("PATCH", f"{DEFAULT}/pods/seated", metadata(annotations={"seats.example/granted": "1"}),
            id="annotate a pod"),
        pytest.param("PATCH", f"{DEFAULT}/pods/seated/status", condition("seats.example/Ready"),
            id="set a condition"),
        pytest.param("POST", f"{DEFAULT}/pods/seated/binding", binding("seats.example/bound"),
            id="bind with a label"),
    ],
)  # fmt: skip
def test_what_a_plugin_declares_is_allowed(policies: Policies, method: str, path: str, body: Any) -> None:
    assert policies.denial(policies.as_user(RECONCILER), method, path + DRY, body) == ""


@pytest.mark.parametrize(
    ("method", "path", "body", "text"),
    [
        pytest.param("POST", f"{SEATS}/configmaps", named("x"), "only ConfigMaps of shares", id="another name"),
        pytest.param("PATCH", f"{SEATS}/configmaps/other", {"data": {"a": "b"}}, "ConfigMaps", id="patch another"),
        pytest.param("POST", f"{DEFAULT}/configmaps", named("seat-2"), "ConfigMaps", id="in another namespace"),
        pytest.param("DELETE", f"{DEFAULT}/configmaps/users", None, "ConfigMaps", id="delete a user's"),
        pytest.param("PATCH", f"{DEFAULT}/configmaps/users", metadata(labels={LABEL: "x"}), "ConfigMaps",
            id="take a user's"),
        pytest.param("PATCH", f"{DEFAULT}/configmaps/labelled", metadata(labels={LABEL: None}), "ConfigMaps",
            id="release one"),
        pytest.param("POST", "/api/v1/namespaces/kube-system/configmaps", named("x", LABEL), "ConfigMap",
            id="in kube-system"),
        pytest.param("POST", QUOTAS, named("any"), "that its plugins declare", id="another kind without the label"),
        pytest.param("DELETE", f"{QUOTAS}/users", None, "that its plugins declare", id="another kind, a user's"),
        pytest.param("PATCH", f"{DEFAULT}/pods/seated", metadata(annotations={"other": "1"}), "plugins declare",
            id="annotation"),
        pytest.param("PATCH", f"{DEFAULT}/pods/seated/status", condition("Ready"), "PodBound",
            id="another condition"),
        pytest.param("POST", f"{DEFAULT}/pods/seated/binding", binding("other"), "plugins declare",
            id="another label"),
    ],
)  # fmt: skip
def test_what_no_plugin_declares_is_denied(policies: Policies, method: str, path: str, body: Any, text: str) -> None:
    assert text in policies.denial(policies.as_user(RECONCILER), method, path + DRY, body)


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
