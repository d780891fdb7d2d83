"""BindRequests as they are on the wire: those of the unmodified KAI scheduler, and those with Bowline's fields."""

from collections.abc import Mapping
from typing import Any

import pytest

from bowline.api import names

ALL = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
STRICT = "?fieldValidation=Strict"
ALLOCATION: dict[str, Any] = {
    "devices": {"results": [{"request": "dev", "driver": "dra.example", "pool": "gpu-node-0", "device": "d0"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-node-0"]}]}]
    },
}
GROUP = "7a7a3d5e-1111-4222-8333-944445555666"


def spec(**fields: Any) -> dict[str, Any]:
    """A spec as the scheduler writes one, with additional or changed fields; None removes one."""
    base = {"podName": "pod", "selectedNode": "gpu-node-0", "receivedResourceType": "Regular"}
    return {key: value for key, value in {**base, **fields}.items() if value is not None}


def bind_request(name: str, body: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    """The object of a spec, with the scheduler's label; it has the name of its pod, unless that is not ``spec``'s."""
    labels = {"selected-node": "gpu-node-0"}
    if body.get("podName") == "pod":
        body = {**body, "podName": name}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": "default", "labels": labels, **metadata},
        "spec": dict(body),
    }


FRACTION = spec(
    receivedResourceType="Fraction", receivedGPU={"count": 1, "portion": "0.50"}, selectedGPUGroups=[GROUP]
)
# Forms the scheduler is known to write, beside those of `kai.REQUESTS`. None of these may ever be rejected.
ON_THE_WIRE = [
    pytest.param(spec(receivedGPU={"count": 0, "portion": "0.00"}), id="a CPU pod with a count of 0"),
    pytest.param(spec(receivedGPU={"count": 8, "portion": "1.00"}), id="all devices of a node"),
    pytest.param({**FRACTION, "receivedGPU": {"count": 1, "portion": "0.26"}}, id="a memory share"),
    pytest.param({**FRACTION, "receivedGPU": {"count": 1, "portion": "0.00"}}, id="a share rounded down to 0.00"),
    pytest.param({**FRACTION, "receivedGPU": {"count": 1, "portion": "1.00"}}, id="a share rounded up to 1.00"),
    pytest.param({**FRACTION, "receivedGPU": {"count": 2, "portion": "0.50"}, "selectedGPUGroups": [GROUP, "other"]},
        id="half of two devices"),
    pytest.param(spec(receivedResourceType="MigInstance", receivedGPU={"portion": "0.00"}), id="a MIG instance"),
    pytest.param(spec(receivedResourceType=""), id="an empty resource type"),
    pytest.param(spec(receivedResourceType=None), id="no resource type"),
    pytest.param(spec(selectedGPUGroups=[]), id="an empty list of groups"),
    pytest.param(spec(backoffLimit=0), id="a limit of no retries"),
    pytest.param(spec(podUID="6dd9cbb5-7a7f-4a7f-9f6e-4f8a9b0c1d2e"), id="Bowline's own field podUID"),
]  # fmt: skip
