"""Users submit pods, KAI-Scheduler decides, the pair executes: the tests do not act as the scheduler."""

from collections import Counter
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from tests.foreign_kinds import api_version, install, objects_path, remove
from tests.kai.team import QUEUE_LABEL, TEAM, Team, needs_kai
from tests.live import FLAKY
from tests.plugins.claims import claim, get_claim, publish, reserved_by
from tests.plugins.sharing import Shares
from tests.plugins.storage import Storage, mounts

pytestmark = needs_kai

HALF = {names.GPU_FRACTION: "0.5"}
_OPERATOR = "training.kubeflow.org"
ONLY_NODE_1: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "gpu-node-1"}}


def groups_of(team: Team, name: str) -> list[str]:
    """The groups that the pod's labels name."""
    return sorted(gpu_groups(team.live.pod(name)["metadata"]["labels"]))


def test_submitted_pods_run(team: Team) -> None:
    team.submit("plain")
    team.submit("whole", gpus=2)
    team.submit("half", annotations=HALF)
    team.submit("memory", annotations={names.GPU_MEMORY: "4096"})
    team.submit("two-devices", annotations={**HALF, names.GPU_FRACTION_NUM_DEVICES: "2"})
    for name in ("plain", "whole"):
        assert team.runs(name)["spec"]["receivedResourceType"] == "Regular"
        assert groups_of(team, name) == []
    for name, devices in (("half", 1), ("memory", 1), ("two-devices", 2)):
        decision = team.runs(name)["spec"]
        assert decision["receivedResourceType"] == "Fraction"
        assert groups_of(team, name) == sorted(decision["selectedGPUGroups"])
        assert len(decision["selectedGPUGroups"]) == devices


def test_a_full_node_accepts_the_next_half_when_one_ends(team: Team) -> None:
    shares = Shares(team.live)
    halves = [f"half-{number}" for number in range(16)]
    for name in halves:
        team.submit(name, annotations=HALF, **ONLY_NODE_1)
    for name in halves:
        assert team.runs(name)["spec"]["selectedNode"] == "gpu-node-1"
    groups = Counter(group for name in halves for group in groups_of(team, name))
    assert sorted(groups.values()) == [2] * 8
    devices = {group: shares.device(group) for group in groups}
    assert len(set(devices.values())) == 8
    # The scheduler counts what the pair has bound, reservations included: no capacity is left for a whole GPU.
    team.submit("late", annotations=HALF, **ONLY_NODE_1)
    team.does_not_fit("late")
    await_release = groups_of(team, "half-7")
    team.delete("half-7")
    assert team.runs("late")["spec"]["selectedGPUGroups"] == await_release


def test_devices_without_sharers_are_available_as_whole_gpus(team: Team) -> None:
    shares = Shares(team.live)
    for number in range(8):
        team.submit(f"half-{number}", annotations={names.GPU_FRACTION: "0.6"}, **ONLY_NODE_1)
    for number in range(8):
        team.runs(f"half-{number}")
    team.submit("whole", gpus=8, **ONLY_NODE_1)
    team.does_not_fit("whole")
    for number in range(8):
        team.delete(f"half-{number}")
    shares.await_release()
    team.runs("whole")


def test_a_gang_starts_as_a_whole_or_not_at_all(team: Team) -> None:
    install(team.live.cluster, "PyTorchJob")
    try:
        for name, workers in (("too-large", 3), ("right", 2)):
            owner = training_job(team, name, workers)
            for number in range(workers):
                team.submit(f"{name}-{number}", gpus=6, owner=owner, labels=worker_labels(number))
        for number in range(2):
            team.runs(f"right-{number}")
        for number in range(3):
            team.does_not_fit(f"too-large-{number}")
    finally:
        remove(team.live.cluster, "PyTorchJob")


def worker_labels(number: int) -> dict[str, str]:
    """The labels that the training operator gives a worker; newer versions group pods by their replica type."""
    return {f"{_OPERATOR}/replica-type": "worker", f"{_OPERATOR}/replica-index": str(number)}


def training_job(team: Team, name: str, workers: int) -> dict[str, Any]:
    """Create a gang's owner; returns the reference to it."""
    body = {
        "apiVersion": api_version("PyTorchJob"),
        "kind": "PyTorchJob",
        "metadata": {"name": name, "labels": {"kai.scheduler/queue": "team"}},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}},
    }
    stored_job = team.live.cluster.api.post(objects_path("PyTorchJob", team.live.namespace), body)
    reference = {key: body[key] for key in ("apiVersion", "kind")}
    return {**reference, "name": name, "uid": stored_job["metadata"]["uid"], "controller": True}


def test_a_failed_decision_is_repeated(team: Team) -> None:
    team.submit("pod", annotations={FLAKY: "99"})
    first = team.request_of("pod")["metadata"]["uid"]

    def is_recreated() -> bool:
        return any(request["metadata"]["uid"] != first for request in team.requests("pod"))

    # Failed, deleted by the scheduler, and another one created.
    team.live.until("there is another request", is_recreated)
    team.live.kubectl("annotate", "pod", "pod", f"{FLAKY}=0", "--overwrite")
    team.runs("pod")


def test_decisions_made_without_a_reconciler_are_bound_when_it_starts(team: Team) -> None:
    assert team.live.pair.reconcilers[0].stop()
    team.submit("whole", gpus=1)
    team.submit("half", annotations=HALF)
    for name in ("whole", "half"):
        team.request_of(name)
        assert "nodeName" not in team.live.pod(name)["spec"]
    team.live.pair.launch_reconciler().wait_ready()
    for name in ("whole", "half"):
        team.runs(name)


def test_devices_that_the_scheduler_allocates_are_reserved(team: Team) -> None:
    publish(team.live.cluster)
    shared_claim = claim("one")
    # Newer versions count a named claim for its queue.
    shared_claim["metadata"]["labels"] = {QUEUE_LABEL: TEAM}
    team.live.create(shared_claim)
    team.submit("pod", resourceClaims=[{"name": "dev", "resourceClaimName": "one"}])
    (decision,) = team.runs("pod")["spec"]["resourceClaimAllocations"]
    stored_claim = get_claim(team.live, "one")
    assert stored_claim["status"]["allocation"]["devices"]["results"] == decision["allocation"]["devices"]["results"]
    assert reserved_by(stored_claim) == {team.live.pod("pod")["metadata"]["uid"]}


def test_volumes_are_bound_on_the_selected_node(team: Team) -> None:
    storage = Storage(team.live)
    try:
        storage.make_class()
        storage.make_volume("v", "gpu-node-1")
        storage.make_claim()
        team.submit("pod", volumes=mounts("data"), **ONLY_NODE_1)
        team.runs("pod")
        assert storage.volume_of() == "v"
    finally:
        storage.clean()
