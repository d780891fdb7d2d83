"""Status, selections, watches and kubectl's view of BindRequests, on the real API server."""

import re
from typing import Any

import pytest

from bowline.kube.stored import is_stored
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.api.samples import ALL, STRICT, bind_request, spec
from tools.generate import crd

# --- status ---

TIME = "2026-11-20T10:00:00Z"
CONDITION = {
    "type": "Bound",
    "status": "True",
    "reason": "Bound",
    "message": "on its node",
    "lastTransitionTime": TIME,
}
STATUS = {
    "phase": "Succeeded",
    "reason": "",
    "failedAttempts": 2,
    "observedGeneration": 1,
    "startTime": TIME,
    "lastAttemptTime": TIME,
    "nextAttemptTime": TIME,
    "completionTime": TIME,
    "nodeName": "gpu-node-0",
    "suggestion": "RescheduleElsewhere",
    "conditions": [{**CONDITION, "observedGeneration": 1}],
}


def test_a_whole_status_is_stored_as_written(crd_cluster: Cluster) -> None:
    crd_cluster.api.post(ALL, bind_request("done", spec()))
    assert crd_cluster.api.patch(f"{ALL}/done/status{STRICT}", {"status": STATUS})["status"] == STATUS
    assert crd_cluster.api.get(f"{ALL}/done")["metadata"]["generation"] == 1, (
        "a status write does not change the generation"
    )


BAD_STATUS = [
    pytest.param({"phase": "Bound"}, "status.phase", id="an unknown phase"),
    pytest.param(
        {"conditions": [{**CONDITION, "reason": "two words"}]}, "status.conditions[0].reason", id="a reason of words"
    ),
]


@pytest.mark.parametrize(("status", "field"), BAD_STATUS)
def test_an_invalid_status_is_rejected_with_its_field(
    crd_cluster: Cluster, status: dict[str, Any], field: str
) -> None:
    crd_cluster.api.post(ALL, bind_request("odd", spec()))
    with pytest.raises(LocalApiError) as error_info:
        crd_cluster.api.patch(f"{ALL}/odd/status", {"status": status})
    assert f"{field}:" in str(error_info.value)


# --- lists, watches, kubectl ---


def select_names(cluster: Cluster, selector: str) -> list[str]:
    page = cluster.api.get(f"{ALL}?fieldSelector={selector.replace('=', '%3D').replace('!', '%21')}")
    return sorted(item["metadata"]["name"] for item in page["items"])


def test_fields_select_requests(crd_cluster: Cluster) -> None:
    for name, body, phase in (
        ("fresh", spec(), None),
        ("pending", spec(), "Pending"),
        ("done", spec(selectedNode="gpu-node-1"), "Succeeded"),
        ("failed", spec(), "Failed"),
    ):
        crd_cluster.api.post(ALL, bind_request(name, body))
        if phase:
            crd_cluster.api.patch(f"{ALL}/{name}/status", {"status": {"phase": phase}})
    assert select_names(crd_cluster, "status.phase!=Succeeded") == ["failed", "fresh", "pending"]
    assert select_names(crd_cluster, "status.phase=Succeeded") == ["done"]
    assert select_names(crd_cluster, "spec.podName=fresh") == ["fresh"]
    assert select_names(crd_cluster, "spec.selectedNode=gpu-node-1") == ["done"]
    assert select_names(crd_cluster, "status.phase!=Succeeded,spec.selectedNode=gpu-node-0") == [
        "failed",
        "fresh",
        "pending",
    ]
    with pytest.raises(LocalApiError, match="field label not supported"):
        select_names(crd_cluster, "spec.backoffLimit=1")


def test_kubectl_shows_the_columns_and_knows_the_short_name(crd_cluster: Cluster) -> None:
    crd_cluster.api.post(ALL, bind_request("shown", spec()))
    status = {"phase": "Failed", "failedAttempts": 3, "reason": "NodeGone: gpu-node-0 is no more"}
    crd_cluster.api.patch(f"{ALL}/shown/status", {"status": status})
    header, row = crd_cluster.kubectl("get", "br").stdout.splitlines()
    assert header.split() == ["NAME", "POD", "NODE", "PHASE", "FAILURES", "AGE", "REASON"]
    columns = row.split(maxsplit=6)
    assert columns[:5] == ["shown", "shown", "gpu-node-0", "Failed", "3"]
    assert columns[6] == status["reason"]
    crd_cluster.api.patch(f"{ALL}/shown", {"metadata": {"finalizers": ["tests.bowline.dev/keep"]}})
    crd_cluster.api.delete(f"{ALL}/shown")
    row = crd_cluster.kubectl("get", "br", "shown", "--no-headers", "--output=wide").stdout
    assert re.search(r"\d+s +\d+s +NodeGone: ", row), row
    crd_cluster.api.patch(f"{ALL}/shown", {"metadata": {"finalizers": []}})


def test_the_api_server_keeps_all_of_the_definition(crd_cluster: Cluster) -> None:
    """It drops unknown parts of a schema; a rule of ours would then silently not apply."""
    definition = crd.custom_resource_definition()
    stored_definition = crd_cluster.api.get(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    )
    assert is_stored(definition["spec"], stored_definition["spec"])
    assert "NonStructuralSchema" not in [condition["type"] for condition in stored_definition["status"]["conditions"]]
