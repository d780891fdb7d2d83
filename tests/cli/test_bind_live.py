"""`bowline bind` on the running pair: a pod is bound as by a scheduler, or the reason why not is printed."""

import subprocess
import sys

from bowline.api import names
from tests.live import Live
from tests.waiting import LIMIT_S


def bind(pair: Live, pod: str, *arguments: str, node: str = "gpu-node-0") -> "subprocess.CompletedProcess[str]":
    cluster = [f"--kubeconfig={pair.cluster.kubeconfig}", f"--namespace={pair.namespace}"]
    command = [sys.executable, "-m", "bowline_cli", "bind", pod, f"--node={node}", *cluster, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_a_pod_is_bound(pair: Live) -> None:
    gpus = {names.RESOURCE_GPU: "2"}
    container = {"name": "main", "image": "registry.example/app:1", "resources": {"limits": gpus, "requests": gpus}}
    pair.create_pod("train", containers=[container])
    completion = bind(pair, "train", "--wait")
    assert completion.returncode == 0, completion
    key = f"{pair.namespace}/train"
    assert completion.stdout == f"BindRequest {key}: created, node gpu-node-0\nSucceeded: the pod is bound\n"
    stored_pod, request = pair.pod("train"), pair.request("train")
    assert stored_pod["spec"]["nodeName"] == "gpu-node-0"
    assert request["metadata"]["ownerReferences"][0]["uid"] == stored_pod["metadata"]["uid"]
    assert request["spec"]["receivedGPU"] == {"count": 2, "portion": "1.00"}
    again = bind(pair, "train")
    assert again.returncode == 1
    assert "no BindRequest is created: it is bound to node gpu-node-0 already" in again.stderr


def test_a_failed_request_prints_reason_and_suggestion_and_blocks_another_one(pair: Live) -> None:
    pair.create_pod("train")
    completion = bind(pair, "train", "--wait", node="absent")
    assert completion.returncode == 1
    assert "Failed: NodeGone: " in completion.stdout
    assert "(suggestion: RescheduleElsewhere, this node is unsuitable, " in completion.stdout
    again = bind(pair, "train")
    assert again.returncode == 1
    assert "409 AlreadyExists: " in again.stderr
    remedy = f"kubectl -n {pair.namespace} delete bindrequest train"
    assert f"it has failed; {remedy}, then repeat this command" in again.stderr
    pair.kubectl(*remedy.split()[1:])
    assert bind(pair, "train", "--wait").returncode == 0


def test_without_wait_the_request_is_created(pair: Live) -> None:
    pair.create_pod("train")
    assert bind(pair, "train").returncode == 0
    pair.phase("train", "Succeeded")


def test_a_share_and_a_pod_that_does_not_exist_are_refused(pair: Live) -> None:
    pair.create_pod("share", {names.GPU_FRACTION: "0.5"})
    completion = bind(pair, "share")
    assert completion.returncode == 1
    assert "it requests a share (gpu-fraction): its scheduler must choose the device" in completion.stderr
    assert pair.not_found(pair.request_path("share"))
    absent = bind(pair, "absent")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert '404 NotFound: pods "absent" not found' in absent.stderr


def test_a_wait_ends_with_what_the_request_waits_for(pair: Live) -> None:
    assert pair.pair.reconcilers[0].stop()
    try:
        pair.create_pod("train")
        completion = bind(pair, "train", "--wait", "--timeout=1s")
        assert completion.returncode == 1
        assert "waiting:" not in completion.stderr, "no reconciler has reported a wait"
        assert "not bound within 1 s; bowline explain says why" in completion.stderr
        assert "the pod later: Created: nothing is reported yet" in completion.stderr
    finally:
        pair.pair.launch_reconciler().wait_ready()
    pair.phase("train", "Succeeded")
