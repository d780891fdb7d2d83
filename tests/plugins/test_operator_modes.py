"""Shares follow the mode of NVIDIA's GPU operator, which is installed later, and the RuntimeClass that it creates."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from bowline.api import names
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.nodes import runtime_class_object
from bowline.testing.builders import pod
from tests.live import Live
from tests.plugins.sharing import HALF, Shares

CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
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
}
CDI = {"cdi": {"enabled": True, "nriPluginEnabled": False}}
NRI = {"cdi": {"enabled": True, "nriPluginEnabled": True}, "toolkit": {"version": "v1.20.1"}}
OLD_NRI = {**NRI, "toolkit": {"version": "v1.19.0"}}
# The watch is tried again within a minute.
DETECTED_S = 300.0


@pytest.fixture
def shares(pair: Live) -> Iterator[Shares]:
    """Sharing pods; the RuntimeClass exists before and after, the GPU operator does not."""
    yield Shares(pair)
    pair.cluster.api.request("DELETE", f"{CRDS}/{CRD['metadata']['name']}", None)
    if pair.not_found(f"{CLASSES}/nvidia"):
        pair.cluster.api.post(CLASSES, runtime_class_object("nvidia"))


def review(live: Live, kind: str = "pod") -> str:
    """The denial of a sharing pod, or of a Deployment of such pods; empty if it is admitted. As a dry run."""
    body = pod("share", live.namespace)
    body["metadata"]["annotations"] = dict(HALF)
    path = f"/api/v1/namespaces/{live.namespace}/pods"
    if kind == "deployment":
        template = {"metadata": {"labels": {"a": "b"}, "annotations": dict(HALF)}, "spec": body["spec"]}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        body = {"metadata": {"name": "share"}, "spec": spec}
        path = f"/apis/apps/v1/namespaces/{live.namespace}/deployments"
    try:
        live.cluster.api.post(f"{path}?dryRun=All", body)
    except LocalApiError as error:
        return str(error)
    return ""


def await_form(shares: Shares, *, is_cdi: bool, is_annotated: bool = False) -> None:
    """Wait until a share that is bound now gets its device in this form: by a CDI name or its UUID, and in NRI mode
    in an annotation for the plugin of the container toolkit as well.
    """
    live = shares.live

    def is_due() -> bool:
        name = f"probe-{uuid4().hex[:8]}"
        shares.share(name, name)
        if live.phase(name, "Succeeded", "Failed")["status"]["phase"] == "Failed":
            shares.delete(name)  # the webhook has noticed the mode, and the reconciler has not
            return False
        annotations = live.pod(name)["metadata"]["annotations"]
        devices = shares.maps()[f"{annotations[names.SHARED_GPU_CONFIGMAP]}-0"][names.VISIBLE_DEVICES]
        assert devices.removeprefix(f"{names.CDI_GPU_KIND}=") == shares.device(name)
        annotated = annotations.get(f"{names.NRI_CONTAINER}main")
        assert annotated in (None, devices)
        shares.delete(name)
        shares.await_release(name)
        return (devices.startswith(names.CDI_GPU_KIND), annotated is not None) == (is_cdi, is_annotated)

    live.until(f"CDI names: {is_cdi}, annotation: {is_annotated}", is_due, DETECTED_S)


@pytest.mark.timeout(900)
def test_shares_follow_the_operators_mode_and_the_class(shares: Shares) -> None:
    live, api = shares.live, shares.live.cluster.api
    assert review(live) == ""
    await_form(shares, is_cdi=False)
    api.delete(f"{CLASSES}/nvidia")
    live.until("the webhook has noticed that the class is gone", lambda: "runtime_class/absent" in review(live))
    assert "gpuSharing.runtimeClassName" in review(live)
    assert "no ClusterPolicy" in review(live)
    assert "GPU shares are denied until RuntimeClass nvidia exists" in live.pair.upgrade()
    # The operator is installed later, in NRI mode with an old toolkit.
    api.post(CRDS, CRD)
    live.until("ClusterPolicies are served", lambda: not live.not_found(POLICIES))
    api.post(POLICIES, {**POLICY, "spec": OLD_NRI})
    live.until("NRI mode is detected", lambda: "NRI mode" in review(live), DETECTED_S)
    denial = review(live)
    for part in ("gpuSharing.runtimeClassName", "nriPluginEnabled", "toolkit to 1.20", "gpuSharing.nvFractions"):
        assert part in denial
    assert "NVIDIA's GPU operator is in NRI mode" in live.pair.upgrade(), "Helm's notes"
    # A workload is denied when it is applied, rather than by an event of its ReplicaSet.
    assert "runtime_class/absent" in review(live, "deployment")
    # A newer toolkit takes the device from an annotation, and needs no class.
    api.patch(f"{POLICIES}/cluster-policy", {"spec": NRI})
    live.until("shares work in NRI mode", lambda: review(live) == "")
    await_form(shares, is_cdi=True, is_annotated=True)
    # Another mode, which creates the class.
    api.patch(f"{POLICIES}/cluster-policy", {"spec": CDI})
    live.until("CDI mode is detected", lambda: "CDI mode" in review(live))
    api.post(CLASSES, runtime_class_object("nvidia"))
    live.until("the class is noticed", lambda: review(live) == "")
    assert "GPU shares are denied until" not in live.pair.upgrade()
    await_form(shares, is_cdi=True)
    api.patch(f"{POLICIES}/cluster-policy", {"spec": {"cdi": {"enabled": False}}})
    await_form(shares, is_cdi=False)
