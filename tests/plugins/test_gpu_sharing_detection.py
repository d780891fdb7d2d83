"""CDI detected from NVIDIA's ClusterPolicy on the real API server, where its CRD is installed later."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from tests.live import Live
from tests.plugins.sharing import Shares

CRDS, POLICIES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/nvidia.com/v1/clusterpolicies"
CRD: dict[str, Any] = {
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
POLICY = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy", "labels": {names.LABEL_VERSION: "v25.10.0"}},
    "spec": {"cdi": {"enabled": True}},
}
# The watch is tried again within a minute.
DETECTED_S = 300.0
NRI = f"{names.NRI_CONTAINER}main"


@pytest.fixture
def shares(pair: Live) -> Iterator[Shares]:
    """Sharing pods in the test's namespace; without the GPU operator before and after."""
    yield Shares(pair)
    if not pair.not_found(f"{CRDS}/clusterpolicies.nvidia.com"):
        pair.cluster.api.delete(f"{CRDS}/clusterpolicies.nvidia.com")


def visible(shares: Shares, name: str) -> str:
    """Bind a share on a device of its own; the devices that its container gets."""
    shares.share(name, name)
    shares.live.phase(name, "Succeeded")
    prefix = shares.live.pod(name)["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
    devices = shares.maps()[f"{prefix}-0"][names.VISIBLE_DEVICES]
    assert devices.removeprefix(f"{names.CDI_GPU_KIND}=") == shares.device(name)
    return devices


def await_cdi(shares: Shares, *, expected: bool) -> None:
    """Wait until a share that is bound now gets its device by a CDI name, or by its UUID."""
    numbers = iter(range(1000))

    def is_detected() -> bool:
        name = f"probe-{expected}-{next(numbers)}".lower()
        devices = visible(shares, name)
        shares.delete(name)
        shares.await_release(name)
        return devices.startswith(names.CDI_GPU_KIND) is expected

    log = shares.live.cluster.layout.logs / "bowline-reconciler-local.log"
    lines = [line for line in log.read_text().splitlines() if "nvidia" in line]
    shares.live.until(f"CDI names: {expected}; {lines}", is_detected, DETECTED_S)


def is_named(shares: Shares) -> bool:
    """Whether a share that is bound now has an annotation with its device."""
    devices = visible(shares, "named")
    named = shares.live.pod("named")["metadata"]["annotations"].get(NRI)
    shares.delete("named")
    shares.await_release("named")
    assert named in (None, devices)
    return named is not None


@pytest.mark.timeout(600)
def test_devices_follow_the_cluster_policy_and_its_changes(shares: Shares) -> None:
    """The pair has started without the CRD: it is installed, the policy is created, changed and deleted."""
    api = shares.live.cluster.api
    assert not visible(shares, "before").startswith(names.CDI_GPU_KIND)
    api.post(CRDS, CRD)
    shares.live.cluster.wait_established("clusterpolicies.nvidia.com")
    api.post(POLICIES, POLICY)
    await_cdi(shares, expected=True)
    # In NRI mode the Binding names the device for the plugin of the container toolkit.
    assert NRI not in shares.live.pod("before")["metadata"]["annotations"]
    api.patch(f"{POLICIES}/cluster-policy", {"spec": {"cdi": {"nriPluginEnabled": True}}})
    shares.live.until("the policy is noticed", lambda: is_named(shares))
    api.patch(f"{POLICIES}/cluster-policy", {"spec": {"cdi": {"enabled": False}}})
    await_cdi(shares, expected=False)
