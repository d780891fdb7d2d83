"""Shares for NVIDIA's GPU fractioning, on the real API server: what the Binding carries, and who may write it."""

from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.nodes import GPU_MEMORY_MIB
from bowline.plugins.gpu_sharing.reservation import reservation_name
from bowline.testing.builders import pod
from tests.live import Live
from tests.plugins.sharing import Shares
from tests.plugins.test_gpu_sharing import FRESH

MAIN = f"{names.NV_CONTAINER}main"
REQUEST, LIMIT = f"{MAIN}{names.NV_MEMORY_REQUEST}", f"{MAIN}{names.NV_MEMORY_LIMIT}"
DEVICES = f"{MAIN}{names.NV_DEVICES}"
# Of each device, by default.
RESERVED_MIB = 1024


@pytest.fixture
def shares(strict_pair: Live) -> Shares:
    """Sharing pods in the test's namespace."""
    return Shares(strict_pair)


def fractions(shares: Shares, name: str) -> dict[str, str]:
    """The annotations of the bound pod that the node's agents read."""
    annotations = shares.live.pod(name)["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if key.startswith(names.NV_CONTAINER)}


def test_a_fraction_is_bound_with_its_device_and_limits_at_no_additional_write(shares: Shares) -> None:
    admitted_pod = shares.make("half", {names.GPU_FRACTION_LIMIT: "0.75"})
    limit = admitted_pod["metadata"]["annotations"][f"{names.KAI_CONTAINER}main{names.KAI_MEMORY_PORTION_LIMIT}"]
    assert limit == "0.75"
    assert fractions(shares, "half") == {}
    shares.ask("half", ["fractioned"], receivedGPU={"count": 1, "portion": "0.50", "computePortion": "0.25"})
    shares.live.phase("half", "Succeeded")
    assert fractions(shares, "half") == {
        REQUEST: f"{(GPU_MEMORY_MIB - RESERVED_MIB) // 2}Mi",
        LIMIT: f"{(GPU_MEMORY_MIB - RESERVED_MIB) * 3 // 4}Mi",
        DEVICES: shares.device("fractioned"),
    }
    writes = shares.writes("half", reservation_name("gpu-node-0", "fractioned"), expected=FRESH)
    assert sorted(writes) == sorted(FRESH)


def test_a_request_in_nvidias_form_is_a_share_of_several_devices(shares: Shares) -> None:
    admitted_pod = shares.make("nv", {names.GPU_FRACTION: None, LIMIT: "20Gi", names.GPU_FRACTION_NUM_DEVICES: "2"})
    assert admitted_pod["metadata"]["annotations"][names.GPU_MEMORY] == "20480"
    assert admitted_pod["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
    shares.ask("nv", ["nv-a", "nv-b"], receivedGPU={"count": 2, "portion": "0.25"})
    shares.live.phase("nv", "Succeeded")
    devices = ",".join(shares.device(group) for group in ("nv-a", "nv-b"))
    assert fractions(shares, "nv") == {REQUEST: "20Gi", LIMIT: "20Gi", DEVICES: devices}
    prefix = admitted_pod["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
    assert shares.maps()[f"{prefix}-0"][names.VISIBLE_DEVICES] == devices


def denial(live: Live, method: str, path: str, body: Any) -> str:
    """The message of a request that must be denied."""
    with pytest.raises(LocalApiError) as error_info:
        live.cluster.api.request(method, path, body, "application/json" if method == "POST" else _MERGE)
    return str(error_info.value)


_MERGE = "application/merge-patch+json"


def test_users_cannot_give_a_container_devices(shares: Shares) -> None:
    """As a cluster administrator, whom the policies trust, also with devices: these are denials of the webhook."""
    live = shares.live
    marked_pod = pod("marked", live.namespace)
    marked_pod["metadata"]["annotations"] = {DEVICES: "GPU-1"}
    live.cluster.api.request("POST", f"{shares.pods}?dryRun=All", marked_pod, "application/json")
    unknown = {f"{MAIN}.gpu-compute.request": "1"}
    template = {"metadata": {"labels": {"a": "b"}, "annotations": unknown}, "spec": marked_pod["spec"]}
    template["spec"] = {**marked_pod["spec"], "restartPolicy": "Always"}
    deployment = {
        "metadata": {"name": "marked"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    path = f"/apis/apps/v1/namespaces/{live.namespace}/deployments"
    assert "gpu_sharing/fraction-suffix" in denial(live, "POST", path, deployment)
    shares.make("sized", {names.GPU_FRACTION: None, REQUEST: "1Gi"})
    patch = {"metadata": {"annotations": {LIMIT: "80Gi"}}}
    assert "nv_fractions/immutable" in denial(live, "PATCH", f"{shares.pods}/sized", patch)
    # Other annotations change without a call.
    live.cluster.api.patch(f"{shares.pods}/sized", {"metadata": {"annotations": {"note": "x"}}})
