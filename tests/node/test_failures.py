"""What fails on a node: the kubelet, a leader's process, a reservation."""

import json
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bowline.api import names
from tests.localnode.cluster import NAMESPACE, NodeCluster
from tests.localnode.settings import NODE_NAME, PAUSE_IMAGE
from tests.node.steps import NodeLive

_PAUSE = {"image": PAUSE_IMAGE, "command": ["/pause"]}
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/bowline-reconciler"


def share(live: NodeLive, name: str, group: str) -> dict[str, Any]:
    """Run a pod with half a device; returns it."""
    live.run_pod(name, {"gpu-fraction": "0.5"}, container=_PAUSE)
    live.bind_share(name, "0.50", group)
    return live.running(name)


def run_whole_gpu_pod(live: NodeLive, name: str) -> dict[str, Any]:
    """Run a pod with a whole device; returns it."""
    live.run_pod(name, limits={"nvidia.com/gpu": "1"}, container=_PAUSE)
    live.bind(name, receivedGPU={"count": 1, "portion": "1.00"})
    return live.running(name)


def reservation(live: NodeLive) -> dict[str, Any]:
    """The only reservation pod."""
    (entry,) = json.loads(live.reservations())
    return dict(entry)


def device_of(pod: dict[str, Any]) -> str:
    """The device that the agent has reported; empty before."""
    return str((pod["metadata"].get("annotations") or {}).get(names.RESERVED_DEVICE, ""))


def registrations(node: NodeCluster) -> int:
    """How often the device plugin has registered."""
    return (node.layout.root / "logs" / "fakegpu.log").read_text().count("registered")


def test_shares_and_whole_gpus_survive_a_killed_kubelet(node: NodeCluster, live: NodeLive) -> None:
    first = share(live, "first", "group-k")
    reservation_uid = reservation(live)["metadata"]["uid"]
    before = registrations(node)
    node.control("kill kubelet")
    live.run_pod("second", {"gpu-fraction": "0.5"}, container=_PAUSE)
    live.bind_share("second", "0.50", "group-k")
    live.phase("second", "Succeeded")
    node.control("start kubelet")
    live.until("the device plugin has registered again", lambda: registrations(node) > before)
    live.running("second")
    run_whole_gpu_pod(live, "whole")
    share(live, "third", "group-l")
    assert live.running("first")["metadata"]["uid"] == first["metadata"]["uid"]
    reservations = json.loads(live.reservations())
    assert reservation_uid in {pod["metadata"]["uid"] for pod in reservations}
    assert len({device_of(pod) for pod in reservations}) == 2


def test_killed_leader_leads_again_in_its_pod_before_its_lease_expires(live: NodeLive) -> None:
    before = live.cluster.api.get(_LEASE)["spec"]
    name, uid, _ = before["holderIdentity"].split("_")
    process = process_of(name)
    killed_at = datetime.now(UTC)
    os.kill(process, signal.SIGKILL)
    # Restarted by the kubelet in the same pod, whose UID is part of the new identity, too.
    after = live.until(
        "the Lease has another holder", lambda: lease_of_another_holder(live, before["holderIdentity"])
    )
    assert after["holderIdentity"].startswith(f"{name}_{uid}_")
    assert after["leaseTransitions"] == before["leaseTransitions"] + 1
    renewed_at, acquired_at = (datetime.fromisoformat(at) for at in (before["renewTime"], after["acquireTime"]))
    sys.stdout.write(
        f"killed leader: leads again {(acquired_at - killed_at).total_seconds():.1f} s after it was killed\n"
    )
    assert (acquired_at - renewed_at).total_seconds() < before["leaseDurationSeconds"], (
        "it waited for the Lease to expire"
    )
    live.run_pod("later", container=_PAUSE)
    live.bind("later")
    live.running("later")


def lease_of_another_holder(live: NodeLive, holder: str) -> dict[str, Any] | None:
    """The Lease's spec once another identity holds it."""
    spec: dict[str, Any] = live.cluster.api.get(_LEASE)["spec"]
    return spec if spec.get("holderIdentity") not in ("", None, holder) else None


def process_of(pod: str) -> int:
    """The process id, in this namespace, of process 1 of the pod's container."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            is_first = (folder / "status").read_text().split("NSpid:")[1].splitlines()[0].split()[-1] == "1"
        except OSError:
            continue
        if is_first and f"POD_NAME={pod}".encode() in environ:
            return int(folder.name)
    raise AssertionError(f"pod {pod} has no process")


def test_evicted_reservation_is_recreated_with_the_same_device(live: NodeLive) -> None:
    share(live, "sharer", "group-e")
    lost_reservation = reservation(live)
    name, namespace = lost_reservation["metadata"]["name"], lost_reservation["metadata"]["namespace"]
    eviction = {"metadata": {"name": name, "namespace": namespace}}
    live.cluster.api.post(
        f"/api/v1/namespaces/{namespace}/pods/{name}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", **eviction},
    )

    def is_adopted() -> bool:
        reservations = [
            pod for pod in json.loads(live.reservations()) if not pod["metadata"].get("deletionTimestamp")
        ]
        replacements = [pod for pod in reservations if pod["metadata"]["uid"] != lost_reservation["metadata"]["uid"]]
        return [device_of(pod) for pod in replacements] == [device_of(lost_reservation)]

    live.until("another reservation has the device", is_adopted)
    share(live, "joining", "group-e")
    assert live.running("sharer")["spec"]["nodeName"] == NODE_NAME
