"""Pods from request to running container, on a real kubelet: whole GPUs, shares, volumes, resource claims."""

import json

from localcluster.node.settings import NODE_NAME
from tests.node.steps import NodeLive

UUID_PREFIX = "GPU-00000000-0000-0000-0000-"


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
