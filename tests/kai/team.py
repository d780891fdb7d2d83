"""KAI-Scheduler with the pair in place of its own binder and admission; and a team that submits pods to it.

Its binaries, CRDs and PriorityClasses are those of its Go module. It runs with the rights of an administrator,
because its own chart defines its rights.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.assets.recipes import KAI_MODULE, KAI_TOOLS, Tool
from bowline.localcluster.assets.supply import at_hand, ensure_assets
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.flags import LOOPBACK
from bowline.localcluster.ports import free_ports
from bowline.localcluster.process import Launch
from bowline.testing.builders import pod
from tests.live import Live

SCHEDULER = "kai-scheduler"
QUEUE_LABEL = "kai.scheduler/queue"
TEAM = "team"
_CRDS = ("podgroups", "queues", "topologies")
_UNLIMITED = {"quota": -1, "limit": -1, "overQuotaWeight": 1}


def peer_program(tool: Tool) -> Path:
    """Return the program that Bowline replaces. Raises AssetsError if it is missing and cannot be built."""
    return ensure_assets([tool]).path(tool)


def missing_part() -> str | None:
    """Return why KAI-Scheduler cannot run here; None if it can. Go reports where its module with the CRDs is."""
    if shutil.which("go") is None:
        return "go is not installed; KAI-Scheduler's CRDs are in its Go module"
    if not at_hand(KAI_TOOLS):
        return "KAI-Scheduler is not at hand; `python -m bowline.localcluster assets --kai` builds it with Go"
    return None


_MISSING = missing_part()
needs_kai = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))


@contextmanager
def running_kai(cluster: Cluster) -> Iterator[Sequence[Launch]]:
    """Install what it needs in the cluster and run it until the block ends; yields how its processes were started."""
    assets = ensure_assets(KAI_TOOLS)
    chart = _module_folder(release_for(None, os.environ).kai) / "deployments" / "kai-scheduler"
    for plural in _CRDS:
        # The BindRequest's CRD is Bowline's.
        (crd,) = (chart / "crds").glob(f"*_{plural}.yaml")
        cluster.kubectl("apply", "--server-side", "-f", str(crd))
        cluster.wait_established(
            json.loads(cluster.kubectl("get", "-f", str(crd), "-o=json").stdout)["metadata"]["name"]
        )
    for classes in sorted((chart / "templates" / "priorityclasses").glob("*.yaml")):
        cluster.kubectl("apply", "-f", str(classes))
    for queue in (_queue("parent"), _queue(TEAM, parentQueue="parent")):
        cluster.kubectl("apply", "-f", "-", input=json.dumps(queue))
    ports = free_ports(4)
    flags = {
        Tool.KAI_SCHEDULER: ("--schedule-period=200ms", "--listen-address={}", f"--plugin-server-port={ports[3]}"),
        Tool.KAI_PODGROUPER: ("--metrics-bind-address={}", f"--health-probe-bind-address={LOOPBACK}:{ports[2]}"),
    }
    env = {"PATH": os.environ["PATH"], "HOME": str(cluster.data_dir), "KUBECONFIG": str(cluster.kubeconfig)}
    launches = []
    for tool, port in zip(KAI_TOOLS, ports, strict=False):
        argv = (str(assets.path(tool)), *(flag.format(f"{LOOPBACK}:{port}") for flag in flags[tool]))
        log = cluster.layout.logs / f"kai-{tool}.log"
        launches.append(Launch(f"kai-{tool}", argv, log, cluster.data_dir, env))
        cluster.run_process(launches[-1])
    try:
        yield launches
    finally:
        for launch in launches:
            cluster.process(launch.name).stop()


def _module_folder(version: str) -> Path:
    """The folder of the Go module that the binaries are built from; downloaded if needed."""
    command = ["go", "mod", "download", "-json", f"{KAI_MODULE}@{version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, cwd="/")
    return Path(json.loads(result.stdout)["Dir"])


def _queue(name: str, **spec: Any) -> dict[str, Any]:
    limits = dict.fromkeys(("cpu", "gpu", "memory"), _UNLIMITED)
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {**spec, "resources": limits},
    }


class Team:
    """Submits pods in the test's namespace, and reads their state."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self._pods = f"/api/v1/namespaces/{live.namespace}/pods"

    def submit(
        self,
        name: str,
        *,
        gpus: int = 0,
        annotations: Mapping[str, str] | None = None,
        owner: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Create a pod as a user would, for KAI-Scheduler to place."""
        body = pod(name, self.live.namespace, schedulerName=SCHEDULER, **spec)
        body["metadata"]["labels"] = {QUEUE_LABEL: TEAM, **(labels or {})}
        if annotations:
            body["metadata"]["annotations"] = dict(annotations)
        if owner is not None:
            body["metadata"]["ownerReferences"] = [owner]
        if gpus:
            body["spec"]["containers"][0]["resources"] = {"limits": {names.RESOURCE_GPU: str(gpus)}}
        self.live.cluster.api.post(self._pods, body)

    def delete(self, name: str) -> None:
        """Delete a pod, as its owner does."""
        self.live.cluster.api.request("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": 0})

    def runs(self, name: str) -> dict[str, Any]:
        """Wait until the pod runs on the node of its request, and the request reports it; returns the request."""

        def running() -> dict[str, Any] | None:
            stored_pod = self.live.pod(name)
            return stored_pod if (stored_pod.get("status") or {}).get("phase") == "Running" else None

        bound_pod = self.live.until(f"pod {name} runs", running)
        request = self.live.phase(self.request_of(name)["metadata"]["name"], "Succeeded")
        assert request["spec"]["podUID"] == bound_pod["metadata"]["uid"]
        assert request["spec"]["selectedNode"] == bound_pod["spec"]["nodeName"] == request["status"]["nodeName"]
        return request

    def request_of(self, name: str) -> dict[str, Any]:
        """Wait until the scheduler has made a request for the pod; returns it."""
        return self.live.until(f"there is a request for pod {name}", lambda: next(iter(self.requests(name)), None))

    def requests(self, name: str = "") -> list[dict[str, Any]]:
        """The requests for the pod, or all."""
        requests = self.live.cluster.api.get(self.live.request_path("").rstrip("/"))["items"]
        return [request for request in requests if name in ("", request["spec"]["podName"])]

    def does_not_fit(self, name: str) -> None:
        """Wait until the scheduler reports that the pod does not fit."""
        self.live.until(f"pod {name} is unschedulable", lambda: self.is_unschedulable(self.live.pod(name)) or None)
        assert "nodeName" not in self.live.pod(name)["spec"]

    def is_unschedulable(self, pending_pod: dict[str, Any]) -> bool:
        """Whether the scheduler reports so in the pod's conditions."""
        conditions = pending_pod["status"].get("conditions") or ()
        return any(
            condition["type"] == "PodScheduled" and condition["reason"] == "Unschedulable" for condition in conditions
        )

    def pods(self) -> list[dict[str, Any]]:
        """All pods of the namespace."""
        pods: list[dict[str, Any]] = self.live.cluster.api.get(self._pods)["items"]
        return pods
