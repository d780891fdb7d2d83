"""Devices alternate between shares and whole GPUs: the kubelet must have one for every bound workload pod."""

import json
import os
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.localnode.settings import PAUSE_IMAGE
from tests.node.steps import NodeLive

_PAUSE = {"image": PAUSE_IMAGE, "command": ["/pause"]}
_DEVICES = 4
_SHARES_PER_DEVICE = 2
_PODS = int(os.environ.get("BOWLINE_NODE_PODS", "30"))  # make test-node: 200
_SEED = 20260102


@dataclass
class Scheduler:
    """A scheduler's count: a device is free again when the last pod that used it is deleted.

    ``groups``: the sharing pods of each group. ``whole``: pods with a whole GPU. A reservation pod that still exists
    does not count: releasing it in time is Bowline's task.
    """

    groups: dict[str, set[str]] = field(default_factory=dict)
    whole_pods: set[str] = field(default_factory=set)
    pod_count: int = 0

    def has_free_device(self) -> bool:
        """Return whether another device may be used."""
        return len(self.groups) + len(self.whole_pods) < _DEVICES

    def open_groups(self) -> list[str]:
        """Return the groups with capacity for another share."""
        return [group for group, pods in self.groups.items() if len(pods) < _SHARES_PER_DEVICE]

    def pods(self) -> list[str]:
        """Return all pods that hold or share a device."""
        return sorted(self.whole_pods.union(*self.groups.values()))

    def forget(self, pod: str) -> None:
        """Count a deleted pod's device as free."""
        self.whole_pods.discard(pod)
        for pods in self.groups.values():
            pods.discard(pod)
        self.groups = {group: pods for group, pods in self.groups.items() if pods}


def place(live: NodeLive, scheduler: Scheduler, chance: random.Random) -> bool:
    """Create one pod and its request if there is capacity; return whether there was."""
    name = f"pod-{scheduler.pod_count}"
    # Each existing group, a new group, or a whole device.
    choices = scheduler.open_groups()
    if scheduler.has_free_device():
        choices += [f"group-{scheduler.pod_count}", ""]
    if not choices:
        return False
    group = chance.choice(choices)
    scheduler.pod_count += 1
    if group:
        scheduler.groups.setdefault(group, set()).add(name)
        live.run_pod(name, {"gpu-fraction": "0.5"}, container=_PAUSE)
        live.bind_share(name, "0.50", group)
    else:
        scheduler.whole_pods.add(name)
        live.run_pod(name, limits={"nvidia.com/gpu": "1"}, container=_PAUSE)
        live.bind(name, receivedGPU={"count": 1, "portion": "1.00"})
    return True


def test_devices_alternate_between_pods_in_random_order(live: NodeLive) -> None:
    chance = random.Random(_SEED)  # noqa: S311 - a reproducible order
    scheduler = Scheduler()
    running_pods: set[str] = set()
    while len(running_pods) < _PODS:
        while scheduler.pod_count < _PODS and place(live, scheduler, chance):
            pass
        waiting = set(scheduler.pods()) - running_pods
        if waiting:
            running_pods |= live.until("another pod runs", partial(running, live, waiting))
        candidates = [pod for pod in scheduler.pods() if pod in running_pods]
        leaving = chance.sample(candidates, chance.randint(1, len(candidates)))
        live.kubectl("delete", "pods", *leaving, "--grace-period=1", "--wait")
        for pod in leaving:
            scheduler.forget(pod)
    failures = [r for r in requests(live) if r["status"]["phase"] != "Succeeded"]
    assert not failures, json.dumps(failures)


def running(live: NodeLive, names: set[str]) -> set[str] | None:
    """Return those that run, None if none does; fails if one has ended."""
    pods = live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}/pods")["items"]
    ended_statuses = [pod["status"] for pod in pods if pod["status"].get("phase") in ("Failed", "Succeeded")]
    assert not ended_statuses, json.dumps(ended_statuses)
    return {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"} & names or None


def requests(live: NodeLive) -> list[dict[str, Any]]:
    """Return the namespace's BindRequests; those of deleted pods may be deleted."""
    stored_requests: list[dict[str, Any]] = live.cluster.api.get(live.request_path("").rstrip("/"))["items"]
    return [request for request in stored_requests if not request["metadata"].get("deletionTimestamp")]
