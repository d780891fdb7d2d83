"""The memory of a share as each version of KAI-Scheduler records it, with and without its reserve."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_spec
from bowline.api.gpu_share import memory_limit
from bowline.plugins.nv_fractions.rules import binding_annotations
from tests.api.kai import REQUESTS

# The label of an H100, and what a binder wrote for it: by version, plugin and reserve (MiB).
MEMORY = "81559"
RECORDED = {
    ("0.12", "hamicore", 0): "40779m",
    ("0.17", "hamicore", 0): "40779m",
    ("0.18", "hamicore", 0): "40779m",
    ("0.18", "nvfractions", 0): "40779Mi",
    ("0.18", "nvfractions", 1024): "40267Mi",
}
NODE = {"metadata": {"name": "node", "labels": {names.NODE_GPU_MEMORY: MEMORY}}}
POD: dict[str, Any] = {
    "metadata": {"name": "pod", "annotations": {names.GPU_FRACTION: "0.5"}},
    "spec": {"containers": [{"name": "main"}]},
}
CASES = [
    pytest.param(plugin, reserved, body, recorded, id=f"{version}-{plugin}-{reserved}-{number}")
    for (version, plugin, reserved), recorded in RECORDED.items()
    for number, body in enumerate(REQUESTS[version])
    if body["receivedResourceType"] == "Fraction"
]


@pytest.mark.parametrize(("plugin", "reserved", "body", "memory"), CASES)
def test_the_memory_of_a_share_is_the_recorded_one(
    plugin: str, reserved: int, body: dict[str, Any], memory: str
) -> None:
    spec, _ = decode_spec(body)
    assert spec is not None
    gpu = spec.received_gpu
    assert gpu is not None
    if plugin == "hamicore":
        assert memory_limit(POD, NODE, gpu.share, reserved) == (memory, "")
        return
    annotations, error = binding_annotations(POD, NODE, gpu, "GPU-1", reserved)
    assert error == ""
    assert annotations[f"{names.NV_CONTAINER}main{names.NV_MEMORY_REQUEST}"] == memory
