"""Our CRD over an existing one without rules, with stored objects that ours would reject."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import ApiError
from bowline.localcluster.spec import ClusterSpec
from charts.generate import crd
from tests.api.samples import ALL, bind_request

BAD = {
    "podName": "",
    "selectedNode": "gpu-node-0",
    "receivedResourceType": "Fraction",
    "receivedGPU": {"count": -1, "portion": "9"},
}


def lax_definition() -> dict[str, Any]:
    """A CRD with our names and no constraints: no schema, no rules, no selectable fields, no columns."""
    definition = crd.custom_resource_definition()
    (version,) = definition["spec"]["versions"]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version["schema"]["openAPIV3Schema"] = {"type": "object", "properties": {"spec": anything, "status": anything}}
    del version["selectableFields"], version["additionalPrinterColumns"]
    return definition


@pytest.fixture(scope="module")
def taken_over() -> Iterator[Cluster]:
    """A cluster with an object from before, and our CRD in force."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        definition = lax_definition()
        cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(definition))
        name = definition["metadata"]["name"]
        cluster.wait_established(name)
        cluster.api.post(ALL, bind_request("old", BAD))
        cluster.kubectl("apply", "--server-side", "-f", "-", input=crd.as_yaml())
        # A changed schema is in force a little later; each attempt is a request, no sleep.
        while accepts(cluster):
            pass
        yield cluster


def accepts(cluster: Cluster) -> bool:
    try:
        cluster.api.post(f"{ALL}?dryRun=All", bind_request("new", BAD))
    except ApiError:
        return False
    return True


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        pytest.param("/status", {"status": {"phase": "Failed", "reason": "Invalid: no pod"}}, id="the result"),
        pytest.param("", {"metadata": {"finalizers": ["bowline.dev/rollback"]}}, id="a finalizer"),
        pytest.param("", {"metadata": {"finalizers": None}}, id="no finalizer"),
    ],
)
def test_an_old_invalid_object_can_be_completed(taken_over: Cluster, subresource: str, patch: dict[str, Any]) -> None:
    """Old errors count only for writes of those fields; otherwise its failure could never be written."""
    taken_over.api.patch(f"{ALL}/old{subresource}", patch)


def test_an_old_invalid_object_cannot_get_another_error(taken_over: Cluster) -> None:
    with pytest.raises(ApiError, match="cannot change: receivedGPU;"):
        taken_over.api.patch(f"{ALL}/old", {"spec": {"receivedGPU": {"count": -2}}})
