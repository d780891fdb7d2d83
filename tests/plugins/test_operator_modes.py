"""Shares on a cluster whose GPU operator creates no RuntimeClass: denied with the reason, until it exists."""

from collections.abc import Iterator

import pytest

from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.nodes import runtime_class_object
from bowline.testing.builders import pod
from tests.live import Live
from tests.plugins.sharing import HALF
from tests.plugins.test_gpu_sharing_detection import CRD, CRDS, DETECTED_S, POLICIES, POLICY

CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
CDI = {"cdi": {"enabled": True, "nriPluginEnabled": False}}
NRI = {"cdi": {"enabled": True, "nriPluginEnabled": True}, "toolkit": {"version": "v1.20.1"}}
OLD_NRI = {**NRI, "toolkit": {"version": "v1.19.0"}}


@pytest.fixture
def live(pair: Live) -> Iterator[Live]:
    """The pair; the RuntimeClass exists before and after, the GPU operator does not."""
    yield pair
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


@pytest.mark.timeout(900)
def test_the_reason_follows_the_operators_mode_and_the_class(live: Live) -> None:
    api = live.cluster.api
    assert review(live) == ""
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
    # Another mode, which creates the class.
    api.patch(f"{POLICIES}/cluster-policy", {"spec": CDI})
    live.until("CDI mode is detected", lambda: "CDI mode" in review(live))
    api.post(CLASSES, runtime_class_object("nvidia"))
    live.until("the class is noticed", lambda: review(live) == "")
    assert "GPU shares are denied until" not in live.pair.upgrade()
