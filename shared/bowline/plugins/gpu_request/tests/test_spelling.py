"""Which annotations and labels are reported as a misspelt request for a share."""

import pytest

from bowline.api import names
from bowline.plugins.gpu_request.spelling import spelling_warnings
from bowline.plugins.gpu_request.tests.builders import Json, pod


def intended(raw: Json) -> list[str]:
    return [warning.message.rpartition(" ")[2].rstrip("?") for warning in spelling_warnings(raw)]


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        ("gpu-fracton", "gpu-fraction"),
        ("GPU-Fraction", "gpu-fraction"),
        ("kai.scheduler/gpu-fraction", "gpu-fraction"),
        ("gpu-mem", "gpu-memory"),
        # Names of other projects.
        ("nvidia.com/gpu-fraction", "gpu-fraction"),
        ("nvidia.com/gpu-memory", "gpu-memory"),
        ("nvidia.com/gpumem", "annotation gpu-memory, in MiB"),
        ("nvidia.com/gpumem-percentage", "annotation gpu-fraction"),
        ("nvidia.com/gpucores", "annotation gpu-fraction"),
        ("nvidia.com/gpu.shared", "annotation gpu-fraction or gpu-memory"),
        ("nvidia.com/gpu", "limits nvidia.com/gpu of a container"),
        ("gpu-memory-limit", "annotation gpu-memory.limit"),
        ("gpu-fraction-limit", "annotation gpu-fraction.limit"),
        ("runai/gpu-memory-limit", "annotation gpu-memory.limit"),
    ],
)
def test_a_name_that_resembles_one_of_a_share_gets_the_right_spelling_and_place(key: str, meaning: str) -> None:
    (warning,) = spelling_warnings(pod({key: "1"}))
    assert warning.path == f"metadata.annotations[{key}]"
    assert f"did you mean {meaning}" in warning.message


@pytest.mark.parametrize(
    "key",
    [
        *names.OWNED_ANNOTATIONS,
        "nvidia.com/gpu-driver-upgrade-enabled",
        "example.com/gpu-fraction",
        "cloud.google.com/gke-accelerator",
        "nvidia.com/use-gpuuuid",
        "nvidia.com/gpu-product",
        "kai.scheduler/topology",
        "hami.io/gpu-scheduler-policy",
    ],
)
def test_other_annotations_are_not_reported(key: str) -> None:
    assert intended(pod({key: "0.5"})) == []


@pytest.mark.parametrize(
    ("resource", "is_reported"),
    [
        ("nvidia.com/gpus", True),
        ("nvidia.com/GPU", True),
        ("nvidia/gpu", True),
        ("nvidia.com/gpu", False),
        ("nvidia.com/gpumem", False),
        ("nvidia.com/gpu.shared", False),
        ("nvidia.com/mig-1g.12gb", False),
        ("amd.com/gpu", False),
    ],
)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_misspelt_resource_is_reported_with_the_correct_name(field: str, resource: str, is_reported: bool) -> None:
    raw = pod({})
    raw["spec"][field] = [{"name": "a"}, {"name": "b", "resources": {"limits": {resource: 1}}}]
    paths = [warning.path for warning in spelling_warnings(raw)]
    assert paths == ([f"spec.{field}[1].resources.limits[{resource}]"] if is_reported else [])


@pytest.mark.parametrize(
    ("memory", "is_reported"),
    [("8", True), ("127", True), ("128", False), ("8Gi", False), ("0", False), ("\u0661", False),
     ("1048576", False), ("1048577", True), ("8589934592", True), (str(2**63), False)],
)  # fmt: skip
def test_a_share_of_an_impossible_size_is_reported(memory: str, is_reported: bool) -> None:
    rules = [warning.rule.id for warning in spelling_warnings(pod({names.GPU_MEMORY: memory}))]
    assert rules == (["gpu_request/memory-size"] if is_reported else [])


def test_the_comparisons_are_bounded() -> None:
    misspelt = {f"gpu-fraction-{number}": "0.5" for number in range(20_000)}
    assert len(intended(pod(misspelt))) == 20
    assert intended(pod({"gpu-fraction" * 100: "0.5"})) == []
