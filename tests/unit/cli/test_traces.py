"""GPUs of another project's object that are in none of its pods."""

from typing import Any

import pytest

from bowline.framework.config import Settings
from bowline.framework.workload_kinds import READY
from bowline.framework.workloads import WorkloadEntry, resolve_workloads
from bowline_cli.traces import unknown_devices

GPU = {"nvidia.com/gpu": 1}
POD: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "main"}]}}
GPUS: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"resources": {"limits": GPU}}]}}


def ray(**head: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "spec": {"headGroupSpec": {"template": POD, **head}}}


@pytest.mark.parametrize(
    ("kind", "raw", "places"),
    [
        pytest.param("RayCluster", ray(resources={"limits": GPU}), ["spec.headGroupSpec.resources.limits"],
            id="beside a template"),
        pytest.param("RayCluster", ray(template=GPUS), [], id="in a container"),
        pytest.param("RayCluster", ray(minResources=GPU), [], id="of a group of pods"),
        pytest.param("RayCluster", {**ray(), "status": {"resources": {"limits": GPU}}}, [], id="in the status"),
        pytest.param("PyTorchJob", {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": GPUS}}}}, [],
            id="in a pod of a name"),
    ],
)  # fmt: skip
def test_gpus_that_are_in_no_known_pod_are_named(kind: str, raw: dict[str, Any], places: list[str]) -> None:
    entries = tuple(WorkloadEntry.model_construct(kind=w.kind, group=w.group) for w in READY)
    kinds, _ = resolve_workloads(Settings(workloads=entries).workloads)
    (workload,) = [entry for entry in kinds.values() if entry.kind == kind]
    assert unknown_devices(raw, workload.templates_in(raw)) == places
