"""Our CRD over an existing one without rules, with stored objects that ours would reject."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.api.samples import ALL, bind_request
from tools.generate import crd

BAD = {
    "podName": "",
    "selectedNode": "gpu-node-0",
    "receivedResourceType": "Fraction",
    "receivedGPU": {"count": -1, "portion": "9"},
}
RESULT = {"status": {"phase": "Failed", "reason": "Invalid: no pod"}}
VALIDATES_AGAIN = release_for(None, os.environ).minor == "1.32"


# A group of its own: the other tests use the definition of the shared API server.
GROUP = "takeover.bowline.dev"
REQUESTS = ALL.replace(names.GROUP, GROUP)


def own_definition() -> Any:
    """Our CRD, in that group."""
    return json.loads(json.dumps(crd.custom_resource_definition()).replace(names.GROUP, GROUP))


def lax_definition() -> Any:
    """A CRD with our names and no constraints: no schema, no rules, no selectable fields, no columns."""
    definition = own_definition()
    (version,) = definition["spec"]["versions"]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version["schema"]["openAPIV3Schema"] = {"type": "object", "properties": {"spec": anything, "status": anything}}
    del version["selectableFields"], version["additionalPrinterColumns"]
    return definition


def request(name: str) -> dict[str, Any]:
    return {**bind_request(name, BAD), "apiVersion": names.API_VERSION.replace(names.GROUP, GROUP)}


@pytest.fixture(scope="module")
def taken_over(bare_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with an object from before, and our CRD in force."""
    name = f"{names.PLURAL}.{GROUP}"
    bare_cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(lax_definition()))
    bare_cluster.wait_established(name)
    bare_cluster.api.post(REQUESTS, request("old"))
    bare_cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(own_definition()))
    # A changed schema is in force a little later; each attempt is a request, no sleep.
    while accepts(bare_cluster):
        pass
    yield bare_cluster
    bare_cluster.kubectl("delete", "crd", name, "--wait=false")


def accepts(cluster: Cluster) -> bool:
    try:
        cluster.api.post(f"{REQUESTS}?dryRun=All", request("new"))
    except LocalApiError:
        return False
    return True


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        pytest.param("/status", RESULT, id="the result", marks=pytest.mark.skipif(VALIDATES_AGAIN,
            reason="Kubernetes 1.32 validates the unchanged spec again")),
        pytest.param("", {"metadata": {"finalizers": ["bowline.dev/rollback"]}}, id="a finalizer"),
        pytest.param("", {"metadata": {"finalizers": None}}, id="no finalizer"),
    ],
)  # fmt: skip
def test_an_old_invalid_object_can_be_completed(taken_over: Cluster, subresource: str, patch: dict[str, Any]) -> None:
    """Old errors count only for writes of those fields; otherwise its failure could never be written."""
    taken_over.api.patch(f"{REQUESTS}/old{subresource}", patch)


@pytest.mark.skipif(not VALIDATES_AGAIN, reason="a limit of Kubernetes 1.32")
def test_on_kubernetes_1_32_an_old_invalid_object_gets_no_result(taken_over: Cluster) -> None:
    """As docs/support-matrix.md states; it can be deleted."""
    with pytest.raises(LocalApiError, match=r"spec\.selectedGPUGroups: Required value"):
        taken_over.api.patch(f"{REQUESTS}/old/status", RESULT)
    taken_over.api.delete(f"{REQUESTS}/old?dryRun=All")


def test_an_old_invalid_object_cannot_get_another_error(taken_over: Cluster) -> None:
    with pytest.raises(LocalApiError, match="cannot change: receivedGPU;"):
        taken_over.api.patch(f"{REQUESTS}/old", {"spec": {"receivedGPU": {"count": -2}}})
