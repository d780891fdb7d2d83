"""JSON types before plugins: what is rejected, with which path, and that well-formed objects pass."""

from typing import Any

import pytest

from bowline.framework.structure import is_deleting, pod_errors, workload_errors

VARIABLES: list[Any] = [{"name": f"A{index}", "value": "x", "unknown": index} for index in range(6)]


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": spec}


def container(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "ok"}, {"name": "main", **fields}])


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"metadata": {"annotations": None, "labels": None}, "spec": {"containers": None}}, id="nulls"),
        pytest.param(container(resources={"limits": {"nvidia.com/gpu": 1, "cpu": "500m", "x": 0.5}}),
            id="quantities"),
        pytest.param(container(unknown={"deep": [1, {}]}, env=[{"name": "A", "value": ""}]), id="unknown fields"),
        pytest.param(container(env=VARIABLES, args=["x"] * 6), id="long arrays"),
    ],
)  # fmt: skip
def test_a_well_formed_pod_has_no_errors(raw: dict[str, Any]) -> None:
    assert pod_errors(raw) == ()


MALFORMED: list[Any] = [
    pytest.param({}, ["metadata: null: is required", "spec: null: is required"], id="nothing"),
    pytest.param({"metadata": {"annotations": {"gpu-fraction": 0.5, "mps": True, "n": None}}, "spec": {}},
        ["metadata.annotations[gpu-fraction]: 0.5: must be a string; put it in quotes",
        "metadata.annotations[mps]: true: must be a string; put it in quotes",
        "metadata.annotations[n]: null: must be a string"], id="annotations without quotes"),
    pytest.param(pod(containers={}), ["spec.containers: {}: must be a list"], id="containers that are an object"),
    pytest.param(pod(containers=[None, "x"]), ["spec.containers[0]: null: must be an object",
        'spec.containers[1]: "x": must be an object'], id="containers that are not objects"),
    pytest.param(container(env=[*VARIABLES, {"name": "B", "value": None, "valueFrom": "x"}, {"value": 1}]),
        ['spec.containers[1].env[6].valueFrom: "x": must be an object',
        "spec.containers[1].env[7].value: 1: must be a string; put it in quotes"], id="two of many variables"),
    pytest.param(container(env=[*VARIABLES, "B"]), ['spec.containers[1].env[6]: "B": must be an object'],
        id="one of many variables that is no object"),
    pytest.param(container(resources={"limits": {"nvidia.com/gpu": True, "cpu": []}}),
        ["spec.containers[1].resources.limits[nvidia.com/gpu]: true: "
        'must be a quantity, such as 1, "500m" or "16Gi"',
        'spec.containers[1].resources.limits[cpu]: []: must be a quantity, such as 1, "500m" or "16Gi"'],
        id="quantities of a wrong type"),
    pytest.param(container(securityContext={"privileged": "yes"}),
        ['spec.containers[1].securityContext.privileged: "yes": must be true or false'],
        id="a switch that is a string"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "expectation"), MALFORMED)
def test_a_malformed_pod_is_rejected_with_every_error(raw: dict[str, Any], expectation: list[str]) -> None:
    assert [str(fault) for fault in pod_errors(raw)] == expectation


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        pytest.param({"metadata": {}, "spec": []}, "spec", id="a spec that is a list"),
        pytest.param({"metadata": {}, "spec": {"jobTemplate": "x"}}, "spec.jobTemplate", id="a job template"),
        pytest.param({"metadata": {"ownerReferences": [1]}, "spec": {}}, "metadata.ownerReferences[0]",
            id="an owner"),
    ],
)  # fmt: skip
def test_a_malformed_workload(raw: dict[str, Any], path: str) -> None:
    assert [fault.path for fault in workload_errors(raw)] == [path]


@pytest.mark.parametrize(
    ("raw", "expectation"),
    [
        ({"metadata": None}, False),
        ({"metadata": []}, False),
        ({"metadata": {"deletionTimestamp": None}}, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_is_deleting_accepts_any_object(raw: dict[str, Any], expectation: bool) -> None:
    assert is_deleting(raw) is expectation
