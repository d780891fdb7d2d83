"""The writes of a share's binding."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.meta import ObjectUID
from bowline.plugins.gpu_sharing.configmaps import (
    is_prepared_by,
    owning_pods,
    share_configmaps,
    visible_devices,
)
from bowline.plugins.gpu_sharing.labels import label_changes, label_removals, missing_labels
from bowline.plugins.gpu_sharing.rules import request_error, share_of
from bowline.plugins.gpu_sharing.tests.pods import HALF, Json, sharing_pod

SHARED = {"bowline.dev/gpu-sharing": "true"}
ONE = {"runai-gpu-group": "g1", **SHARED}
TWO = {"runai-gpu-group": "g1", "runai-gpu-group/g2": "g2", **SHARED}
# As KAI-Scheduler's binder labels a pod of two devices.
PREFIXED = {"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2"}


def spec(groups: list[str], **fields: Any) -> BindRequestSpec:
    return BindRequestSpec.model_validate(
        {
            "podName": "p",
            "selectedNode": "n",
            "receivedResourceType": "Fraction",
            "receivedGPU": {"count": len(groups), "portion": "0.50"},
            "selectedGPUGroups": groups,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        pytest.param(spec(["g1"]), "", id="one device"),
        pytest.param(spec(["g1", "g2"]), "", id="two devices"),
        pytest.param(spec([], selectedFractionalGpuGroups=[{"id": "g1"}], receivedGPU={"count": 1}), "",
            id="the newer list"),
        pytest.param(spec(["g1", "g2"], selectedFractionalGpuGroups=[{"id": "g3"}]), "spec.receivedGPU.count",
            id="the newer list alone counts"),
        pytest.param(spec(["g1", "g2"], selectedFractionalGpuGroups=[{"id": "g1"}, {"id": "g1"}]),
            "spec.selectedFractionalGpuGroups", id="a group twice in the newer list"),
        pytest.param(spec([]), "spec.selectedGPUGroups", id="no group"),
        pytest.param(spec(["g1", "g1"]), "spec.selectedGPUGroups", id="a group twice"),
        pytest.param(spec(["g1"], receivedGPU=None), "spec.receivedGPU.count", id="no portion"),
        pytest.param(spec(["g1"], receivedGPU={"count": 2}), "spec.receivedGPU.count",
            id="fewer groups than devices"),
        pytest.param(spec([], selectedFractionalGpuGroups=[{"id": "g1", "computeSharingMode": "mps"}],
            receivedGPU={"count": 1}), "spec.selectedFractionalGpuGroups", id="a mode that no device has"),
        pytest.param(spec(["g" * 64]), "spec.selectedGPUGroups", id="too long for a label"),
        pytest.param(spec(["g1="]), "spec.selectedGPUGroups", id="a part of a selector"),
    ],
)  # fmt: skip
def test_requests_that_can_be_executed(request_: BindRequestSpec, path: str) -> None:
    fault = request_error(request_)
    assert (fault or "").partition(": ")[0] == path
    assert fault is None or "have the scheduler" in fault or "has a group of its own" in fault


@pytest.mark.parametrize(
    ("labels", "groups", "changes"),
    [
        pytest.param({}, ["g1"], ONE, id="one device: the plain label"),
        pytest.param({"app": "x"}, ["g1", "g2"], TWO, id="two devices: each group in one label"),
        pytest.param(ONE, ["g1"], ONE, id="already in the cache: written again, because it may be deleted"),
        pytest.param(ONE, ["g2"], ONE | {"runai-gpu-group": "g2"}, id="an earlier decision's group is removed"),
        pytest.param(TWO, ["g1"], ONE | {"runai-gpu-group/g2": None}, id="a device less"),
        pytest.param(PREFIXED, ["g1", "g2"], TWO | {"runai-gpu-group/g1": None}, id="labelled by KAI's binder"),
    ],
)
def test_labels_of_a_user(labels: dict[str, str], groups: list[str], changes: dict[str, str | None]) -> None:
    assert label_changes(labels, groups) == changes


@pytest.mark.parametrize(
    ("labels", "complete"),
    [
        pytest.param(ONE, ONE, id="one device"),
        pytest.param(TWO, TWO, id="two devices"),
        pytest.param(PREFIXED, TWO, id="bound by KAI's binder, two devices"),
        pytest.param({"runai-gpu-group": "g1"}, ONE, id="bound by KAI's binder, one device"),
        pytest.param(PREFIXED | SHARED, TWO, id="bound by an older version"),
    ],
)
def test_labels_that_hide_a_group_are_renewed(labels: dict[str, str], complete: dict[str, str]) -> None:
    changed = labels | missing_labels(labels)
    assert {key: value for key, value in changed.items() if value is not None} == complete


@pytest.mark.parametrize(
    ("labels", "groups", "removals"),
    [
        pytest.param({**ONE, "app": "x"}, ["g1"], {"runai-gpu-group", *SHARED}, id="the plain label"),
        pytest.param(TWO, ["g1", "g2"], set(TWO), id="both forms"),
        pytest.param(TWO, ["g1"], {"runai-gpu-group"}, id="another group is left, so it still shares"),
        pytest.param(ONE, ["g2"], set(), id="another decision's label remains"),
        pytest.param(SHARED, ["g1"], set(SHARED), id="a mark without a group"),
    ],
)
def test_labels_removed_by_a_rollback(labels: dict[str, str], groups: list[str], removals: set[str]) -> None:
    assert label_removals(labels, groups) == dict.fromkeys(removals)


def share(containers: list[Json] | None = None) -> Any:
    reference = {"configMapKeyRef": {"name": "p-0", "key": "NVIDIA_VISIBLE_DEVICES"}}
    referring = [{"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": reference}]}]
    return share_of(sharing_pod({**HALF, "runai/shared-gpu-configmap": "p"}, containers=containers or referring))


POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}


def maps(of: Any, visible: str = "GPU-1", limit: str = "") -> Json:
    """Return the data of both ConfigMaps, by name."""
    bodies = share_configmaps(of, POD, spec(["g1"]), ObjectUID("r"), visible, limit)
    return {body["metadata"]["name"]: body["data"] for body in bodies}


@pytest.mark.parametrize(
    ("devices", "cdi", "device_list"),
    [
        pytest.param({"g1": "GPU-1"}, False, "GPU-1", id="one device"),
        pytest.param({"g2": "GPU-2", "g1": "GPU-1"}, False, "GPU-2,GPU-1", id="in the order of the groups"),
        pytest.param({"g1": "GPU-1", "g2": "GPU-2"}, True,
            "k8s.device-plugin.nvidia.com/gpu=GPU-1,k8s.device-plugin.nvidia.com/gpu=GPU-2", id="CDI names"),
    ],
)  # fmt: skip
def test_the_two_configmaps(devices: dict[str, str], cdi: bool, device_list: str) -> None:
    visible = visible_devices(devices.values(), cdi=cdi)
    assert maps(share(), visible=visible) == {
        "p-0": {"GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50", "NVIDIA_VISIBLE_DEVICES": device_list},
        "p-0-evar": {},
    }


LIMIT = {"name": "CUDA_DEVICE_MEMORY_LIMIT", "valueFrom": {"configMapKeyRef": {"name": "p-0"}}}


@pytest.mark.parametrize(
    ("env", "limit", "limit_entry"),
    [
        pytest.param([LIMIT], "4147m", {"CUDA_DEVICE_MEMORY_LIMIT": "4147m"}, id="the container refers to it"),
        pytest.param([LIMIT], "", {}, id="it is unknown"),
        pytest.param([], "4147m", {}, id="the container does not refer to it"),
    ],
)
def test_a_memory_limit_is_written_for_a_container_that_reads_it(
    env: list[Json], limit: str, limit_entry: Json
) -> None:
    data = maps(share([{"name": "main", "env": env}]), limit=limit)
    assert data["p-0"] == {"GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50", **limit_entry}


@pytest.mark.parametrize(
    "container",
    [
        pytest.param({"name": "main"}, id="no variable"),
        pytest.param({"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "x"}]}, id="a plain value"),
    ],
)
def test_a_container_without_a_key_gets_its_devices_from_the_complete_map(container: Json) -> None:
    assert maps(share([container])) == {
        "p-0": {"GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"},
        "p-0-evar": {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
    }


def test_a_configmap_belongs_to_its_pod() -> None:
    complete, direct = share_configmaps(share(), POD, spec(["g2", "g1"]), ObjectUID("r"), "GPU-2,GPU-1")
    assert direct["immutable"] is True
    assert direct["metadata"]["annotations"] == {"bowline.dev/prepared-for": "r"}
    annotations = complete["metadata"]["annotations"]
    assert annotations == {"bowline.dev/prepared-for": "r", "bowline.dev/gpu-groups": "g2,g1"}
    assert direct["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
    # With this label the API server recognises the ConfigMaps that only the reconciler may write.
    assert direct["metadata"]["labels"] == {"bowline.dev/gpu-sharing": "true"}
    assert direct["data"] == {}
    assert owning_pods(direct) == {"u": "p"}


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="no owner"),
        pytest.param([{"kind": "Deployment", "name": "d", "uid": "u"}], id="a workload's of the same UID"),
    ],
)
def test_a_configmap_of_another_owner(owners: list[Json]) -> None:
    assert owning_pods({"metadata": {"name": "m", "ownerReferences": owners}}) == {}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(sharing_pod(), id="never prepared"),
        pytest.param(sharing_pod({**HALF, "runai/shared-gpu-configmap": "p", "gpu-fraction-container-name": "x"}),
            id="its container is not there"),
    ],
)  # fmt: skip
def test_a_pod_without_a_share(pod: Json) -> None:
    assert share_of(pod) is None


@pytest.mark.parametrize(
    ("owner", "prepared_for", "node", "expectation"),
    [
        pytest.param("uid", "mine", "", True, id="for this request"),
        pytest.param("uid", "another", "", False, id="for another request of the pod"),
        pytest.param("uid", None, "", True, id="by another binder, which has not bound the pod"),
        pytest.param("uid", None, "n1", False, id="by another binder, which has bound the pod"),
        pytest.param("other", "mine", "", False, id="of another pod"),
    ],
)
def test_a_configmap_is_deleted_by_the_request_that_has_prepared_it(
    owner: str, prepared_for: str | None, node: str, expectation: bool
) -> None:
    annotations = {} if prepared_for is None else {names.PREPARED_FOR: prepared_for}
    metadata = {"annotations": annotations, "ownerReferences": [{"kind": "Pod", "name": "half", "uid": owner}]}
    pod = sharing_pod(metadata={"uid": "uid"}, nodeName=node)
    assert is_prepared_by({"metadata": metadata}, pod, ObjectUID("mine")) is expectation
