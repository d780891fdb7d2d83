"""Whole GPUs and MIG devices; tests/api/test_quantities_live.py compares RESOURCES with a real API server."""

from typing import Any

import pytest

from bowline.plugins.gpu_request.rules import Policy, request_errors
from bowline.plugins.gpu_request.tests.builders import (
    CLASS,
    GPU,
    LIMIT,
    MIG,
    REQUEST,
    Found,
    Json,
    container,
    pod,
    violations,
)

RESOURCES = [
    pytest.param({GPU: 2}, None, [], id="an integer"),
    pytest.param({GPU: "2000m"}, {GPU: 2}, [], id="the same in thousandths"),
    pytest.param({GPU: "0.9999"}, {GPU: "1"}, [], id="rounded up by the API server"),
    pytest.param({GPU: None}, None, [], id="null, which is stored as 0"),
    pytest.param({GPU: 1}, {"cpu": 1}, [], id="a request of something else"),
    pytest.param({"cpu": "0.5"}, {"cpu": "0.1"}, [], id="no GPU at all"),
    pytest.param({CLASS: 1.5}, None, [], id="a device class"),
    pytest.param({GPU: "one"}, None, [("quantity-format", LIMIT)], id="a word"),
    pytest.param({GPU: 0.5}, None, [("quantity-integer", LIMIT)], id="half"),
    pytest.param({GPU: "500m"}, {GPU: 0.5}, [("quantity-integer", LIMIT)], id="half, as stored after defaulting"),
    pytest.param({GPU: -1}, None, [("quantity-integer", LIMIT)], id="negative"),
    pytest.param(None, {GPU: 1}, [("limit-missing", LIMIT)], id="only a request"),
    pytest.param(None, {GPU: 1.5}, [("quantity-integer", REQUEST), ("limit-missing", LIMIT)],
        id="only a request of a part"),
    pytest.param({GPU: 2}, {GPU: 1}, [("request-differs", REQUEST)], id="requests less"),
    pytest.param({GPU: 0}, {GPU: 1}, [("request-differs", REQUEST)], id="requests one with a limit of 0"),
    pytest.param({GPU: 1}, {GPU: None}, [("request-differs", REQUEST)], id="requests null"),
    pytest.param({GPU: 2.5}, {GPU: 1.5}, [("quantity-integer", LIMIT), ("quantity-integer", REQUEST),
        ("request-differs", REQUEST)], id="two different parts"),
    pytest.param({MIG: 0.5, GPU: 0.5}, None, [("quantity-integer", LIMIT), ("quantity-integer",
        f"spec.containers[0].resources.limits[{MIG}]")], id="a part of a MIG device"),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "requests", "expected"), RESOURCES)
def test_resources_of_a_container(limits: Any, requests: Any, expected: Found) -> None:
    assert violations(pod({}, container(limits=limits, requests=requests))) == expected


def test_every_container_is_validated_init_containers_first() -> None:
    half = container(limits={GPU: 0.5})
    side = container(limits={GPU: 0.5}, restartPolicy="Always")
    paths = [path for _, path in violations(pod({}, container(), half, init=[half, side]))]
    places = ("initContainers[0]", "initContainers[1]", "containers[1]")
    assert paths == [f"spec.{place}.resources.limits[{GPU}]" for place in places]


@pytest.mark.parametrize(
    ("limits", "requests", "remedy"),
    [
        pytest.param(None, {GPU: 1}, "set it to the request, 1", id="of a request alone"),
        pytest.param(None, {GPU: "0.5"}, "set it to a whole number", id="of a request that is wrong"),
        pytest.param({GPU: 2}, {GPU: 1}, "the limit, 2; leave the request out and it is", id="of another limit"),
        pytest.param({GPU: "0.5"}, {GPU: 1}, "the limit; leave the request out and it is", id="of a wrong limit"),
    ],
)
def test_a_remedy_names_no_amount_that_is_an_error(limits: Json | None, requests: Json, remedy: str) -> None:
    *_, last = request_errors(pod({}, container(limits=limits, requests=requests)), Policy())
    assert last.message.endswith(remedy)


def test_gpus_at_pod_level() -> None:
    raw = pod({}, resources={"limits": {"cpu": 1, GPU: 1, MIG: 0}, "requests": {GPU: 1}})
    assert violations(raw) == [
        ("pod-level", f"spec.resources.limits[{GPU}]"),
        ("pod-level", f"spec.resources.limits[{MIG}]"),
        ("pod-level", f"spec.resources.requests[{GPU}]"),
    ]


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        ("2000m", "2"),
        ("2e0", "2"),
        ("-1500m", "-1.5"),
        ("1e30", "1.000e+30"),
        ("1e2147483647", "1.000e+2147483647"),
        ("9" * 5000, "1.000e+5000"),
        ("four\nor five", r'"four\nor five"'),
    ],
)
def test_a_quantity_is_printed_the_same_however_it_was_written(quantity: Any, text: str) -> None:
    fault = request_errors(pod({"gpu-fraction": "0.5"}, container(limits={GPU: quantity})), Policy())[0]
    assert f"nvidia.com/gpu {text});" in fault.message
