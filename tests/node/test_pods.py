"""Pods from request to running container, on a real kubelet: whole GPUs, shares, volumes, resource claims."""

import json

import pytest

from tests.localnode.settings import NODE_NAME
from tests.node.steps import NodeLive
from tests.plugins.storage import Storage

UUID_PREFIX = "GPU-00000000-0000-0000-0000-"
DRIVER = "gpu.fake.example"
_CLAIMS = "/apis/resource.k8s.io/v1"
_WRITE = """
import pathlib, time
file = pathlib.Path("/data/written")
file.write_text("by the pod")
print(file.read_text(), flush=True)
time.sleep(3600)
"""


def test_pod_with_request_runs_its_container(live: NodeLive) -> None:
    live.run_pod("plain")
    live.bind("plain")
    assert live.running("plain")["spec"]["nodeName"] == NODE_NAME
    assert live.phase("plain", "Succeeded", "Failed")["status"]["phase"] == "Succeeded"


def test_whole_gpu_pod_gets_a_device_from_the_kubelet(live: NodeLive) -> None:
    live.run_pod("whole", limits={"nvidia.com/gpu": "1"})
    live.bind("whole", receivedGPU={"count": 1, "portion": "1.00"})
    live.running("whole")
    assert live.environment("whole")["NVIDIA_VISIBLE_DEVICES"].startswith(UUID_PREFIX)


def test_two_shares_of_a_group_use_the_device_of_its_reservation(live: NodeLive) -> None:
    for name in ("one", "two"):
        live.run_pod(name, {"gpu-fraction": "0.4"})
        live.bind_share(name, "0.40", "group-a")
    for name in ("one", "two"):
        live.running(name)
    devices = {live.environment(name)["NVIDIA_VISIBLE_DEVICES"] for name in ("one", "two")}
    (reservation,) = json.loads(live.reservations())
    assert devices == {reservation["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"]}


def test_share_of_two_devices_sees_both(live: NodeLive) -> None:
    live.run_pod("multi", {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"})
    live.bind_share("multi", "0.50", "group-b", "group-c")
    live.running("multi")
    devices = live.environment("multi")["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(set(devices)) == 2
    assert all(device.startswith(UUID_PREFIX) for device in devices)


def test_pod_sees_the_device_that_the_request_allocates_to_its_claim(live: NodeLive) -> None:
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": live.namespace}}]}}
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    api = live.cluster.api
    if live.not_found(_CLAIMS):
        pytest.skip("the API server serves no resource.k8s.io/v1 (Kubernetes 1.34 does)")
    api.post(f"{_CLAIMS}/deviceclasses", {"metadata": {"name": live.namespace}, "spec": {"selectors": [selector]}})
    live.create(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": claim}
    )
    live.run_pod(
        "claiming",
        container={"resources": {"claims": [{"name": "gpu"}]}},
        resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}],
    )
    device_result = {"request": "gpu", "driver": DRIVER, "pool": NODE_NAME, "device": "gpu-2"}
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}]}
    allocation = {"devices": {"results": [device_result]}, "nodeSelector": {"nodeSelectorTerms": [on_node]}}
    live.bind("claiming", resourceClaimAllocations=[{"name": "gpu", "allocation": allocation}])
    live.running("claiming")
    assert live.environment("claiming")["FAKE_GPU_DEVICE"] == "gpu-2"
    live.kubectl("delete", "pod", "claiming")
    path = f"{_CLAIMS}/namespaces/{live.namespace}/resourceclaims/c"
    live.until("the claim is free", lambda: not api.get(path).get("status", {}).get("allocation"))
    api.delete(f"{_CLAIMS}/deviceclasses/{live.namespace}")


def test_local_volume_is_bound_mounted_and_written(live: NodeLive) -> None:
    path = f"/var/lib/bowline-volumes/{live.namespace}"
    storage = Storage(live)
    folder = {"name": "folder", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    # The kubelet creates the folder for a container that mounts it.
    live.run_pod("folder", volumes=[folder], container={"volumeMounts": [{"name": "folder", "mountPath": "/folder"}]})
    live.bind("folder")
    live.running("folder")
    try:
        storage.make_class()
        storage.make_volume("disk", NODE_NAME, local={"path": path})
        storage.make_claim()
        live.run_pod(
            "writer",
            program=_WRITE,
            container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            securityContext={"fsGroup": 10000},
        )
        live.bind("writer")
        live.running("writer")
        live.output("writer", "by the pod")
        assert storage.volume_of() == "disk"
    finally:
        live.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", check=False)
        storage.clean()
