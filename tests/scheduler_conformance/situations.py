"""The situations that a scheduler meets, and what docs/protocol.md requires of it in each.

A situation raises ConformanceError with the name of the rule that is broken. Each runs on two nodes of eight GPUs, in
a namespace of its own, with Bowline's pair as the binder.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bowline.shared.api import names
from bowline.testing.builders import bind_request, pod
from tests.live import Live
from tests.scheduler_conformance.programs import Processes, Program

T = TypeVar("T")

OTHER: Final = "another-scheduler"
NODE_0, NODE_1 = "gpu-node-0", "gpu-node-1"
_FLAKY = "example.bowline.dev/fail-attempts"


class ConformanceError(AssertionError):
    """A broken rule of the protocol; ``rule`` is its name."""

    def __init__(self, rule: str, why: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {why}")


@dataclass(frozen=True, slots=True)
class Stage:
    """A running scheduler and a namespace. ``limit_s``: how long a scheduler may take for what it must do."""

    live: Live
    program: Program
    processes: Processes
    limit_s: float

    def submit(self, name: str, gpus: int, node: str = "", flaky: int = 0, scheduler: str = "") -> None:
        """Create a pod for the scheduler under test, or another one."""
        selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
        scheduler_name = scheduler or self.program.scheduler_name
        body = pod(name, self.live.namespace, schedulerName=scheduler_name, tolerations=[], **selector)
        body["metadata"] |= {"labels": dict(self.program.pod_labels), "annotations": {_FLAKY: str(flaky)}}
        body["spec"]["containers"][0]["resources"] = {"limits": {names.RESOURCE_GPU: str(gpus)}}
        self.live.create(body)

    def requests(self, name: str) -> list[dict[str, Any]]:
        """The present requests for the pod."""
        items = self.live.cluster.api.get(self.live.request_path("").rstrip("/"))["items"]
        return [item for item in items if item["spec"]["podName"] == name]

    def until(self, rule: str, description: str, condition: Callable[[], T | None]) -> T:
        """Wait for what the rule requires."""
        try:
            return self.live.until(description, condition, self.limit_s)
        except AssertionError as error:
            raise ConformanceError(rule, f"waited {self.limit_s:g} s for: {description}") from error

    def decided(self, rule: str, name: str) -> dict[str, Any]:
        """Wait for a request for the pod."""
        return self.until(rule, f"a request for pod {name}", lambda: next(iter(self.requests(name)), None))

    def runs(self, rule: str, name: str) -> str:
        """Wait until the pod is bound; returns its node."""
        return str(self.until(rule, f"pod {name} is bound", lambda: self.live.pod(name)["spec"].get("nodeName")))

    def creations(self) -> Counter[tuple[str, int]]:
        """The requests that were created or denied in the namespace, by pod and HTTP status, from the audit log."""
        return Counter(self._creations())

    def _creations(self) -> Iterator[tuple[str, int]]:
        for line in self.live.cluster.audit_log.read_text().splitlines():
            entry = json.loads(line)
            reference = entry.get("objectRef") or {}
            is_creation = entry["verb"] == "create" and reference.get("resource") == names.PLURAL
            if is_creation and reference.get("namespace") == self.live.namespace:
                yield reference.get("name", ""), entry["responseStatus"]["code"]


def require(rule: str, condition: bool, why: str) -> None:
    """Raise ConformanceError unless the condition holds."""
    if not condition:
        raise ConformanceError(rule, why)


def first_decision(stage: Stage) -> None:
    """A pod gets one request, which names it by UID and is named after it; other schedulers' pods get none."""
    stage.submit("foreign", 1, scheduler=OTHER)
    for name, gpus in (("cpu", 0), ("one", 1), ("two", 2)):
        stage.submit(name, gpus)
    for name in ("cpu", "one", "two"):
        stage.runs("decides", name)
        requests = stage.requests(name)
        created = sum(count for (_, code), count in stage.creations().items() if code == 201)
        require("one-request-per-pod", len(requests) == 1 and created <= 3, f"{created} requests for 3 pods")
        (request,) = requests
        uid = stage.live.pod(name)["metadata"]["uid"]
        owners = [owner.get("uid") for owner in request["metadata"].get("ownerReferences") or ()]
        require("owner", owners == [uid], f"the owner of the request for {name} is not its pod")
        require(
            "named-after-the-pod", request["metadata"]["name"] == name, "the pod's name prevents a second request"
        )
    require("own-pods-only", not stage.requests("foreign"), f"a pod of {OTHER} got a request")


def repeated_failure(stage: Stage) -> None:
    """A decision that always fails keeps no neighbour from the node, and is replaced when its cause is gone."""
    stage.submit("doomed", 8, NODE_1, flaky=99)
    stage.decided("decides", "doomed")
    stage.submit("neighbour", 8, NODE_1)
    stage.runs("frees-the-node", "neighbour")
    stage.live.kubectl("delete", "pod", "neighbour", "--grace-period=0", "--force")
    stage.live.kubectl("annotate", "pod", "doomed", f"{_FLAKY}=0", "--overwrite")
    stage.runs("replaces-failed-requests", "doomed")


def stale_node(stage: Stage) -> None:
    """A node is cordoned after the decision: the request fails, and the next decision is for another node."""
    reconciler = stage.live.pair.reconcilers[0]
    if not reconciler.stop():
        raise AssertionError("the reconciler did not stop")
    cordoned = ""
    try:
        stage.submit("moved", 1)
        cordoned = stage.decided("decides", "moved")["spec"]["selectedNode"]
        stage.live.kubectl("cordon", cordoned)
        stage.live.pair.launch_reconciler().wait_ready()
        node = stage.runs("leaves-unsuitable-nodes", "moved")
        require("leaves-unsuitable-nodes", node != cordoned, f"the pod is bound to {cordoned}, which is cordoned")
    finally:
        if cordoned:
            stage.live.kubectl("uncordon", cordoned)


def restart(stage: Stage) -> None:
    """A killed scheduler continues from the API objects: no second request, and no capacity is used twice."""
    pods = [f"pod-{number}" for number in range(4)]
    for name in pods:
        stage.submit(name, 2, NODE_1)
    stage.decided("decides", pods[0])
    stage.processes.kill()
    stage.processes.start()
    for name in pods:
        stage.runs("continues-after-a-restart", name)
    _does_not_fit(stage, "fifth", 1)
    _each_created_once(stage, pods)


def two_schedulers(stage: Stage) -> None:
    """Pods of another scheduler use capacity, and their requests belong to it."""
    stage.submit("theirs", 6, NODE_1, scheduler=OTHER)
    uid = stage.live.pod("theirs")["metadata"]["uid"]
    gpus = {"count": 6, "portion": "1.00"}
    stage.live.create(bind_request("theirs", NODE_1, stage.live.namespace, uid, receivedGPU=gpus))
    stage.live.phase("theirs", "Succeeded")
    stage.submit("waiting", 1, NODE_0, scheduler=OTHER)
    stage.submit("fits", 2, NODE_1)
    stage.runs("decides", "fits")
    _does_not_fit(stage, "too-large", 1)
    require("own-pods-only", not stage.requests("waiting"), f"a pod of {OTHER} got a request")
    require("own-pods-only", len(stage.requests("theirs")) == 1, f"the request of a pod of {OTHER} was deleted")


def _does_not_fit(stage: Stage, name: str, gpus: int) -> None:
    """The pod gets no request: a later pod on the other node is decided first."""
    stage.submit(name, gpus, NODE_1)
    stage.submit(f"{name}-barrier", 1, NODE_0)
    stage.runs("decides", f"{name}-barrier")
    require("counts-what-is-used", not stage.requests(name), f"{NODE_1} is full, and {name} got a request for it")


def _each_created_once(stage: Stage, pods: list[str]) -> None:
    creations = stage.creations()
    counts = {name: creations[name, 201] for name in pods}
    require("one-request-per-pod", set(counts.values()) == {1}, f"requests created: {counts}")


SITUATIONS: Final[Mapping[str, Callable[[Stage], None]]] = {
    "first decision": first_decision,
    "repeated failure": repeated_failure,
    "stale node": stale_node,
    "restart": restart,
    "two schedulers": two_schedulers,
}
