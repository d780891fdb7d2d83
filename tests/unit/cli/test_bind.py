"""Which pods `bowline bind` makes a request for, and which request."""

from typing import Any

import pytest

from bowline.api.bindrequest import decode_spec
from bowline.testing.builders import pod
from bowline_cli.bind import bind_request, refusal, remedy


def requesting(*limits: dict[str, str], **spec: Any) -> Any:
    raw = pod("train")
    image = raw["spec"]["containers"][0]
    raw["spec"]["containers"] = [
        image | {"name": f"c{index}", "resources": {"limits": part, "requests": part}}
        for index, part in enumerate(limits or ({},))
    ]
    raw["spec"] |= spec
    return raw


def changed(**changes: Any) -> Any:
    raw = requesting()
    return raw | {key: {**raw.get(key, {}), **value} for key, value in changes.items()}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(changed(spec={"nodeName": "b"}), "it is bound to node b already", id="bound"),
        pytest.param(changed(status={"phase": "Failed"}), "it has ended", id="ended"),
        pytest.param(changed(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "being deleted", id="deleting"),
        pytest.param(
            changed(metadata={"annotations": {"gpu-fraction": "0.5"}}),
            "it requests a share (gpu-fraction): its scheduler must choose the device",
            id="a fraction",
        ),
        pytest.param(
            changed(metadata={"annotations": {"gpu-memory": ""}}), "it requests a share (gpu-memory)", id="memory"
        ),
        pytest.param(
            requesting(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]), "resourceClaims", id="a claim"
        ),
        pytest.param(
            requesting({"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"}),
            "it requests nvidia.com/mig-1g.10gb: its scheduler must choose the devices",
            id="MIG",
        ),
        pytest.param(
            requesting({"deviceclass.resource.kubernetes.io/gpu": "1"}),
            "it requests deviceclass.resource.kubernetes.io/gpu",
            id="a device class",
        ),
    ],
)
def test_a_pod_whose_devices_only_a_scheduler_can_choose_is_refused(raw: Any, reason: str) -> None:
    assert reason in refusal(raw)


@pytest.mark.parametrize(
    ("raw", "received_gpu"),
    [
        pytest.param(requesting(), {"count": 0, "portion": "0.00"}, id="no GPU"),
        pytest.param(
            requesting({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}), {"count": 3, "portion": "1.00"}, id="GPUs"
        ),
        pytest.param(
            requesting({"nvidia.com/mig-1g.10gb": "0"}), {"count": 0, "portion": "0.00"}, id="0 is no device"
        ),
    ],
)
def test_the_request_is_a_scheduler_s(raw: Any, received_gpu: dict[str, Any]) -> None:
    raw["metadata"]["uid"] = "u"
    assert refusal(raw) == ""
    request = bind_request(raw, "gpu-node-0")
    assert request["metadata"] == {
        "name": "train",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "u"}],
    }
    assert request["spec"]["receivedGPU"] == received_gpu
    spec, errors = decode_spec(request["spec"])
    assert errors == ()
    assert spec is not None
    assert (spec.pod_name, spec.pod_uid, spec.selected_node) == ("train", "u", "gpu-node-0")


DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("metadata", "pod_uid", "phase", "expectation"),
    [
        pytest.param({}, "u", "Failed", "it has failed; kubectl -n n delete bindrequest train, then", id="failed"),
        pytest.param({}, "u", "Pending", "for node b and may still bind the pod; bowline explain", id="pending"),
        pytest.param({}, "", "", "for node b and may still bind the pod", id="nothing is reported"),
        pytest.param({}, "former", "Pending", "a former pod of this name; kubectl -n n delete", id="a former pod's"),
        pytest.param(
            DELETING, "former", "Pending", "is being deleted", id="a former pod's, and waits for its release"
        ),
        pytest.param(DELETING, "u", "Failed", "is being deleted", id="failed, and is being deleted"),
    ],
)
def test_what_to_do_about_a_request_of_the_name_follows_from_its_state(
    metadata: dict[str, Any], pod_uid: str, phase: str, expectation: str
) -> None:
    existing = {
        "metadata": {"name": "train", "namespace": "n", **metadata},
        "spec": {"podName": "train", "podUID": pod_uid, "selectedNode": "b"},
        "status": {"phase": phase},
    }
    assert expectation in remedy(existing, changed(metadata={"uid": "u"}))
