"""Requests to the API server: paths, queries, limits, and lines of its replies."""

import pytest

from bowline.kube.calls import object_path
from bowline.kube.errors import NotFound
from bowline.kube.resources import NODES, PODS, Resource


@pytest.mark.parametrize(
    ("resource", "arguments", "expectation"),
    [
        pytest.param(PODS, {"namespace": "a", "name": "b", "subresource": "binding"},
            "/api/v1/namespaces/a/pods/b/binding", id="a subresource"),
        pytest.param(NODES, {"namespace": "ignored", "name": "n.x"}, "/api/v1/nodes/n.x", id="cluster-scoped"),
        pytest.param(PODS, {"namespace": "a", "name": "../../b?c#d%"},
            "/api/v1/namespaces/a/pods/%2E%2E%2F%2E%2E%2Fb%3Fc%23d%25", id="a name cannot reach another path"),
        pytest.param(PODS, {"namespace": "a", "name": ".."}, "/api/v1/namespaces/a/pods/%2E%2E",
            id="a name cannot be the parent"),
        pytest.param(PODS, {"namespace": "a", "name": "b\n"}, "/api/v1/namespaces/a/pods/b%0A",
            id="a name cannot contain a header"),
    ],
)  # fmt: skip
def test_paths(resource: Resource, arguments: dict[str, str], expectation: str) -> None:
    assert resource.path(**arguments) == expectation


@pytest.mark.parametrize(
    ("resource", "namespace", "name"),
    [
        pytest.param(PODS, "a", "", id="no name would be the whole collection"),
        pytest.param(PODS, "", "b", id="no namespace would be another path"),
    ],
)
def test_an_object_needs_its_name_and_namespace(resource: Resource, namespace: str, name: str) -> None:
    with pytest.raises(ValueError, match="needs a"):
        object_path(resource, namespace, name, "")


@pytest.mark.parametrize("name", ["x/status", "x%y", ".", "..", "x" * 254])
def test_an_object_with_a_name_that_no_object_can_have_does_not_exist(name: str) -> None:
    with pytest.raises(NotFound, match="not found"):
        object_path(PODS, "a", name, "")
