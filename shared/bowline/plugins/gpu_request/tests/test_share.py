"""The annotations of a share: their valid values, and what they require."""

from typing import Any

import pytest

from bowline.plugins.gpu_request.rules import Policy, request_errors
from bowline.plugins.gpu_request.tests.builders import COUNT, NAME, Found, Json, container, pod, violations


@pytest.mark.parametrize(
    "value", ["0.5", ".5", "0.50", "00.5", "5e-1", "5E-1", "0.05e1", "+0.5", "0.005", "0.995", "0.5" + "0" * 10_000]
)
def test_a_fraction_is_a_decimal_between_0_and_1(value: str) -> None:
    assert violations(pod({"gpu-fraction": value})) == []


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        pytest.param("", "fraction-format", id="empty"),
        pytest.param(None, "fraction-format", id="null, which is stored as empty"),
        pytest.param("50%", "fraction-format", id="percent"),
        pytest.param("0.5\n", "fraction-format", id="a line break after"),
        pytest.param("0_1.5", "fraction-format", id="an underscore"),
        pytest.param("nan", "fraction-format", id="not a number"),
        pytest.param("\u0660.\u0665", "fraction-format", id="digits of another script"),
        pytest.param(".", "fraction-format", id="a point"),
        pytest.param("0", "fraction-range", id="zero"),
        pytest.param("-0.5", "fraction-range", id="negative"),
        pytest.param("1", "fraction-range", id="one"),
        pytest.param("1e999", "fraction-range", id="more than any float"),
        pytest.param("0." + "9" * 40, "fraction-range", id="one as a float"),
        pytest.param("0.0049", "[fraction-precision]", id="rounded to nothing"),
        pytest.param("0.9951", "[fraction-precision]", id="rounded to everything"),
    ],
)
def test_other_fractions(value: Any, rule: str) -> None:
    assert violations(pod({"gpu-fraction": value})) == [(rule, "gpu-fraction")]


@pytest.mark.parametrize("value", ["1", "4096", "007", "9223372036854775807", "0" * 5000 + "1"])
def test_memory_is_a_whole_number_of_mib(value: str) -> None:
    expected = [("[memory-size]", "gpu-memory")] if len(value) < 4 or value.startswith("9") else []
    assert violations(pod({"gpu-memory": value})) == expected


NOT_POSITIVE = [
    pytest.param("", id="empty"),
    pytest.param(None, id="null, which is stored as empty"),
    pytest.param("0", id="zero"),
    pytest.param("+1", id="a sign"),
    pytest.param("1.5", id="a part"),
    pytest.param("4Gi", id="a unit"),
    pytest.param("1\n", id="a line break after"),
    pytest.param("1_000", id="an underscore"),
    pytest.param("\u0664", id="a digit of another script"),
    pytest.param("9223372036854775808", id="one more than an int64"),
    pytest.param("9" * 5000, id="far too many digits"),
]


@pytest.mark.parametrize("value", NOT_POSITIVE)
def test_other_amounts_of_memory_and_numbers_of_devices(value: Any) -> None:
    assert violations(pod({"gpu-memory": value})) == [("memory-format", "gpu-memory")]
    assert violations(pod({"gpu-fraction": "0.5", COUNT: value})) == [("num-devices-format", COUNT)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("true", [("mps-alone", "mps")], id="asked for without a share"),
        pytest.param("True", [("[mps-spelling]", "mps")], id="capital"),
        pytest.param("false", [], id="false"),
        pytest.param("no", [], id="no"),
        pytest.param("", [], id="empty"),
        pytest.param(None, [], id="null"),
    ],
)
def test_mps_without_a_share(value: Any, expected: Found) -> None:
    assert violations(pod({"mps": value})) == expected


@pytest.mark.parametrize(("value", "expected"), [("true", []), ("TRUE", [("[mps-spelling]", "mps")])])
@pytest.mark.parametrize("share", [{"gpu-fraction": "0.5"}, {"gpu-memory": "1000"}])
def test_mps_with_a_share(share: Json, value: str, expected: Found) -> None:
    assert violations(pod({**share, "mps": value})) == expected


SIDE = container("proxy", restartPolicy="Always")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(pod({"gpu-fraction": "0.5", NAME: "main"}), [], id="a container"),
        pytest.param(pod({"gpu-fraction": "0.5", NAME: "proxy"}, init=[SIDE]), [], id="an init container"),
        pytest.param(pod({"gpu-memory": "1000", NAME: "Main"}), [("container-name", NAME)], id="in another case"),
        pytest.param(pod({"gpu-fraction": "0.5", NAME: None}), [("container-name", NAME)], id="null"),
        pytest.param(pod({"gpu-fraction": "0.5", NAME: ""}, {"image": "x"}), [("container-name", NAME)],
            id="empty as its name"),
        pytest.param(pod({"gpu-fraction": "0.5", NAME: "debug"}, ephemeralContainers=[{"name": "debug"}]),
            [("container-name", NAME)], id="an ephemeral container"),
        pytest.param(pod({NAME: "main"}), [("[container-name-unused]", NAME)], id="without a share"),
    ],
)  # fmt: skip
def test_the_named_container(raw: Json, expected: Found) -> None:
    assert violations(raw) == expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({"gpu-memory": "1000", COUNT: "02"}, [], id="with memory"),
        pytest.param({COUNT: "2"}, [("num-devices-alone", COUNT)], id="alone"),
        pytest.param({COUNT: "two"}, [("num-devices-alone", COUNT), ("num-devices-format", COUNT)],
            id="alone and wrong"),
        pytest.param({"gpu-fraction": "0.5", "gpu-memory": "1000"}, [("memory-and-fraction", "gpu-memory")],
            id="fraction and memory"),
        pytest.param({"gpu-fraction": "", "gpu-memory": ""}, [("fraction-format", "gpu-fraction"),
            ("memory-and-fraction", "gpu-memory"), ("memory-format", "gpu-memory")], id="both empty"),
    ],
)  # fmt: skip
def test_annotations_together(annotations: Json, expected: Found) -> None:
    assert violations(pod(annotations)) == expected


@pytest.mark.parametrize(
    ("annotations", "remedy"),
    [
        ({"gpu-memory": "8Gi"}, 'write "8192"'),
        ({"gpu-memory": "8 GiB"}, 'write "8192"'),
        ({"gpu-memory": "512Mi"}, 'write "512"'),
        ({"gpu-memory": "8G"}, 'write "7629"'),
        ({"gpu-memory": "lots"}, 'for 4 GiB write "4096"'),
        ({"gpu-memory": "0Gi"}, 'for 4 GiB write "4096"'),
        ({"gpu-fraction": "25 %"}, 'write "0.25"'),
        ({"gpu-fraction": "0,5"}, 'write "0.5"'),
        ({"gpu-fraction": "half"}, 'for half a GPU write "0.5"'),
        ({"gpu-fraction": "0%"}, 'for half a GPU write "0.5"'),
        ({"gpu-fraction": "0,00"}, 'for half a GPU write "0.5"'),
        ({"gpu-fraction": "25"}, 'write "0.25"'),
    ],
)
def test_the_remedy_has_the_value_that_was_meant_and_that_is_valid(annotations: Json, remedy: str) -> None:
    (error,) = request_errors(pod(annotations), Policy())
    assert error.message.endswith(f"; {remedy}")
    assert request_errors(pod(dict.fromkeys(annotations, remedy.split('"')[1])), Policy()) == []
