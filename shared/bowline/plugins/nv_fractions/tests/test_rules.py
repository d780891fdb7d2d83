"""The annotations of GPU fractioning: what is added, denied and computed."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import ReceivedGPU
from bowline.plugins.nv_fractions import rules

Json = dict[str, Any]
MAIN = f"{names.NV_CONTAINER}main"
REQUEST, LIMIT, MODE = f"{MAIN}.gpu-memory.request", f"{MAIN}.gpu-memory.limit", f"{MAIN}.gpu-compute.mode"
DEVICES = f"{MAIN}.gpus.devices"
OTHER_REQUEST = f"{names.NV_CONTAINER}other.gpu-memory.request"
PIN = "gpu-fraction-container-name"
SHORT = "nv_fractions/limit-shorthand"
PORTION_LIMIT = "kai.scheduler/container.main.gpu-memory.portion.limit"


def pod(**annotations: str) -> Json:
    return of(annotations)


def of(annotations: Json) -> Json:
    containers = [{"name": "main"}, {"name": "other"}]
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": containers, "initContainers": [{"name": "init"}]},
    }


ADDED = [
    pytest.param({}, {}, id="no share"),
    pytest.param({"gpu-fraction": "0.5"}, {}, id="a fraction has no amount before a node is chosen"),
    pytest.param({"gpu-memory": "8192"}, {REQUEST: "8Gi", PIN: "main"}, id="the largest unit that needs no fraction"),
    pytest.param({"gpu-memory": "1024", PIN: "other"}, {"nvidia.com/container.other.gpu-memory.request": "1Gi"},
        id="the named container"),
    pytest.param({"gpu-memory": "8Gi"}, {}, id="an invalid amount is another rule's"),
    pytest.param({REQUEST: "8Gi"}, {"gpu-memory": "8192", PIN: "main"}, id="NVIDIA's form"),
    pytest.param({REQUEST: "1G"}, {"gpu-memory": "954", PIN: "main"}, id="rounded up to MiB"),
    pytest.param({LIMIT: "4Gi"}, {REQUEST: "4Gi", "gpu-memory": "4096", PIN: "main"},
        id="a limit alone is the request"),
    pytest.param({REQUEST: "2Gi", LIMIT: "4Gi", "gpu-memory": "2048"}, {PIN: "main"}, id="both forms that agree"),
    pytest.param({REQUEST: "lots"}, {}, id="no quantity"),
    pytest.param({REQUEST: "1e30"}, {}, id="more than any device"),
    pytest.param({REQUEST: "1Gi", "gpu-fraction": "0.5"}, {}, id="two sizes"),
    pytest.param({"gpu-memory": "2048", "gpu-memory.limit": "4Gi"}, {REQUEST: "2Gi", LIMIT: "4Gi", PIN: "main"},
        id="the short form of a limit"),
    pytest.param({REQUEST: "2Gi", "gpu-memory.limit": "4G"}, {LIMIT: "4G", "gpu-memory": "2048", PIN: "main"},
        id="the short form of a limit beside NVIDIA's request"),
    pytest.param({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8", PIN: "other"},
        {"kai.scheduler/container.other.gpu-memory.portion.limit": "0.8"}, id="the short form of a fraction's limit"),
    pytest.param({"gpu-fraction": "0.5", "nvidia.com/container.other.gpu-compute.mode": "sm-sharing"}, {PIN: "other"},
        id="a mode names the container"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "expected"), ADDED)
def test_annotations_added_at_admission(annotations: Json, expected: Json) -> None:
    assert rules.added_annotations(of(annotations)) == expected
    assert rules.added_annotations(of({**annotations, **expected})) == {}, "idempotent"


VALID = [
    pytest.param({"gpu-fraction": "0.5", PORTION_LIMIT: "0.8"}, id="a fraction with a limit"),
    pytest.param({REQUEST: "2Gi", LIMIT: "2Gi", MODE: "sm-sharing"}, id="NVIDIA's form"),
    pytest.param({"gpu-memory": "2048", "gpu-memory.limit": "2Gi", LIMIT: "2Gi"}, id="both forms of a limit"),
    pytest.param({MODE: "time-slicing", "gpu-fraction": "0.5"}, id="a mode beside a fraction"),
    pytest.param({MODE: "sm-sharing"}, id="a mode without a share"),
    pytest.param({"nvidia.com/gpu.something": "x", "kai.scheduler/container.main.other": "x"}, id="other keys"),
]


@pytest.mark.parametrize("annotations", VALID)
def test_a_valid_pod(annotations: Json) -> None:
    assert list(rules.pod_errors(of(annotations))) == []


INVALID = [
    pytest.param({"nvidia.com/container.absent.gpu-memory.request": "1Gi"}, {"nv_fractions/container"},
        id="no such container"),
    pytest.param({REQUEST: "1Gi", "nvidia.com/container.other.gpu-compute.mode": "sm-sharing"},
        {"nv_fractions/containers"}, id="a mode of another container"),
    pytest.param({"gpu-fraction": "0.5", MODE: "sm-sharing",
        "nvidia.com/container.other.gpu-compute.mode": "sm-sharing"}, {"nv_fractions/containers"},
        id="two containers of a fraction"),
    pytest.param({REQUEST: "1Gi", OTHER_REQUEST: "1Gi"}, {"nv_fractions/containers"}, id="two amounts"),
    pytest.param({REQUEST: "1Gi", PIN: "other"}, {"nv_fractions/container-name"}, id="two names of the container"),
    pytest.param({REQUEST: "0"}, {"nv_fractions/memory-format"}, id="nothing"),
    pytest.param({REQUEST: "2Gi", LIMIT: "1Gi"}, {"nv_fractions/memory-range"}, id="more than the limit"),
    pytest.param({REQUEST: "2Gi", "gpu-memory": "1024"}, {"nv_fractions/memory-mismatch"}, id="two sizes"),
    pytest.param({REQUEST: "2Gi", "gpu-fraction": "0.5"}, {"nv_fractions/memory-and-fraction"}, id="and a fraction"),
    pytest.param({"gpu-memory.limit": "4Gi"}, {SHORT}, id="a short form without a share"),
    pytest.param({"gpu-memory": "1024", "gpu-memory.limit": "lots"}, {SHORT}, id="a limit that is no quantity"),
    pytest.param({"gpu-memory": "4096", "gpu-memory.limit": "8192"}, {SHORT}, id="a limit in MiB"),
    pytest.param({"gpu-fraction": "0.5", "gpu-memory.limit": "8Gi"}, {SHORT}, id="an amount that limits a fraction"),
    pytest.param({"gpu-memory": "1024", "gpu-fraction.limit": "0.8"}, {SHORT}, id="a part that limits an amount"),
    pytest.param({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.5"}, {SHORT}, id="a limit that is not above"),
    pytest.param({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.750001"}, {SHORT}, id="a limit with 6 decimals"),
    pytest.param({"gpu-memory": "1024", "gpu-memory.limit": "4Gi", LIMIT: "2Gi"}, {SHORT},
        id="two limits that differ"),
    pytest.param({MODE: "exclusive", "gpu-fraction": "0.5"}, {"nv_fractions/mode"}, id="an unknown mode"),
    pytest.param({PORTION_LIMIT: "0.5"}, {"nv_fractions/portion-limit"}, id="a part of no fraction"),
    pytest.param({PORTION_LIMIT: "0.5", "gpu-fraction": "0.5"}, {"nv_fractions/portion-limit"},
        id="a limit not above"),
    pytest.param({PORTION_LIMIT: "1", "gpu-fraction": "0.5"}, {"nv_fractions/portion-limit"}, id="the whole device"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "expected"), INVALID)
def test_an_invalid_pod_is_denied_by_its_rule(annotations: Json, expected: set[str]) -> None:
    errors = list(rules.pod_errors(of(annotations)))
    assert {error.rule.id for error in errors} == expected
    assert all(("; " in error.message) for error in errors), "a remedy"
    assert not any(error.is_warning for error in errors)


def test_the_size_of_a_share_cannot_change() -> None:
    before = {REQUEST: "1Gi", PORTION_LIMIT: "0.5", "gpu-memory.limit": "2Gi", "other": "x", DEVICES: "GPU-1"}
    errors = rules.change_errors({REQUEST: "2Gi", "other": "y"}, before)
    assert [(error.rule.id, error.path) for error in errors] == [
        ("nv_fractions/immutable", "metadata.annotations[gpu-memory.limit]"),
        ("nv_fractions/immutable", f"metadata.annotations[{PORTION_LIMIT}]"),
        ("nv_fractions/immutable", f"metadata.annotations[{REQUEST}]"),
    ]


NODE = {"metadata": {"name": "n", "labels": {names.NODE_GPU_MEMORY: "2001"}}}
HALF = ReceivedGPU(count=1, portion="0.50")


BOUND = [
    pytest.param({"gpu-fraction": "0.5"}, {REQUEST: "1000Mi"}, id="rounded down to MiB"),
    pytest.param({"gpu-memory": "1024", REQUEST: "1Gi"}, {}, id="the pod's own request is kept"),
    pytest.param({"gpu-fraction": "0.5", PORTION_LIMIT: "0.8"}, {REQUEST: "1000Mi", LIMIT: "1600Mi"},
        id="a limit as a part of the device"),
    pytest.param({"gpu-memory": "1024", "gpu-memory.limit": "2Gi"}, {REQUEST: "1Gi", LIMIT: "2Gi"},
        id="the short form of a pod admitted before"),
    pytest.param({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"}, {REQUEST: "1000Mi", LIMIT: "1600Mi",
        PORTION_LIMIT: "0.8"}, id="the short form of a fraction's limit, of a pod admitted before"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "expected"), BOUND)
def test_annotations_of_the_binding(annotations: Json, expected: Json) -> None:
    """KAI-Scheduler would count a pod with a key that it does not know, as for compute, as one without a GPU."""
    received = ReceivedGPU(count=1, portion="0.50", compute_portion="0.25")
    result, error = rules.binding_annotations(of(annotations), NODE, received, "GPU-1,GPU-2", 0)
    assert error == ""
    assert result == {DEVICES: "GPU-1,GPU-2", **expected}


RESERVED = [
    pytest.param({"gpu-fraction": "0.5", PORTION_LIMIT: "0.8"}, 1024, {REQUEST: "488Mi", LIMIT: "781Mi"}, "",
        id="the limit, too"),
    pytest.param({"gpu-memory": "1024"}, 1024, {REQUEST: "1Gi"}, "", id="an amount is not reduced"),
    pytest.param({"gpu-fraction": "0.5"}, 2000, {}, "0.50 of 1 MiB is nothing", id="less than the part"),
    pytest.param({"gpu-fraction": "0.5"}, 2001, {}, "leaves nothing of its GPUs of 2001 MiB", id="all"),
    pytest.param({"gpu-memory": "1024", REQUEST: "1Gi", PORTION_LIMIT: "0.8"}, 4096, {}, "leaves nothing",
        id="all, of a limit"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "reserved", "expected", "why"), RESERVED)
def test_a_part_is_computed_from_what_the_driver_leaves(
    annotations: Json, reserved: int, expected: Json, why: str
) -> None:
    result, error = rules.binding_annotations(of(annotations), NODE, HALF, "GPU-1", reserved)
    amounts = {key: value for key, value in result.items() if key in (REQUEST, LIMIT)}
    assert (amounts, why in error, bool(error)) == (expected, True, bool(why))


UNKNOWN = [
    pytest.param({"gpu-fraction": "0.5"}, {}, HALF, "have GPU feature discovery label it", id="no label"),
    pytest.param({"gpu-fraction": "0.5"}, {names.NODE_GPU_MEMORY: "100"}, ReceivedGPU(count=1, portion="0.00"),
        "is nothing", id="no portion"),
    pytest.param({"gpu-memory": "1", REQUEST: "1Mi", PORTION_LIMIT: "0.5"}, {}, HALF, "portion.limit]: node n",
        id="a limit on a node without a label"),
    pytest.param({"gpu-fraction": "0.5", PIN: "absent"}, {names.NODE_GPU_MEMORY: "100"}, HALF,
        "must name a container", id="no container"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "labels", "received", "why"), UNKNOWN)
def test_a_share_without_known_amounts(annotations: Json, labels: Json, received: ReceivedGPU, why: str) -> None:
    result, error = rules.binding_annotations(
        of(annotations), {"metadata": {"name": "n", "labels": labels}}, received, "GPU-1", 0
    )
    assert result == {}
    assert why in error
