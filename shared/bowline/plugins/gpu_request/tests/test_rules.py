"""Exclusions, forbidden updates, and the order of all errors."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.rule import Severity
from bowline.plugins.gpu_request.rules import Policy, request_errors, update_errors
from bowline.plugins.gpu_request.tests.builders import (
    CLASS,
    COUNT,
    DEFAULT,
    GPU,
    LIMIT,
    MIG,
    NAME,
    REQUEST,
    Found,
    Json,
    brief,
    claiming,
    container,
    pod,
    violations,
)


@pytest.mark.parametrize("key", ["gpu-fraction", "gpu-memory"])
@pytest.mark.parametrize(
    ("raw", "rules"),
    [
        pytest.param(pod({}, container(limits={GPU: 1})), ["share-and-whole"], id="a limit"),
        pytest.param(pod({}, container(limits={GPU: 0})), [], id="a limit of 0"),
        pytest.param(pod({}, container(limits={GPU: "0.0"}, requests={GPU: "0m"})), [], id="a 0 written otherwise"),
        pytest.param(pod({}, container(limits={GPU: None})), [], id="null, which is stored as 0"),
        pytest.param(pod({}, container(), container("b", limits={GPU: 1}, requests={GPU: 1})), ["share-and-whole"],
            id="in the second container"),
        pytest.param(pod({}, init=[container("i", limits={GPU: 1})]), ["share-and-whole"], id="in an init container"),
        pytest.param(pod({}, ephemeralContainers=[container("d", limits={GPU: 1})]), [],
            id="in an ephemeral container"),
        pytest.param(pod({}, container(limits={MIG: 1})), ["share-and-mig"], id="a MIG device"),
        pytest.param(pod({}, container(limits={GPU: 1, MIG: 1}), container("b", limits={GPU: 1})), ["share-and-whole",
            "share-and-mig"], id="both, once each"),
    ],
)  # fmt: skip
def test_a_share_excludes_devices(key: str, raw: Json, rules: list[str]) -> None:
    raw = {**raw, "metadata": {"annotations": {key: "0.5" if key == "gpu-fraction" else "500"}}}
    assert violations(raw) == [(rule, key) for rule in rules]


def test_a_share_excludes_a_misspelt_gpu() -> None:
    raw = pod({"gpu-fraction": "0.5"}, container(limits={GPU: "one"}))
    limit = "spec.containers[0].resources.limits[nvidia.com/gpu]"
    assert violations(raw) == [("share-and-whole", "gpu-fraction"), ("quantity-format", limit)]


KNOWN = Policy(gpu_device_classes=frozenset({"gpu.example.com"}))
DENIED, WARNED = [("share-and-dra", "gpu-fraction")], [("[share-and-claim]", "gpu-fraction")]


@pytest.mark.parametrize(
    ("raw", "policy", "expected"),
    [
        pytest.param(pod({}, claiming("main", "c")), KNOWN, WARNED, id="a claim of an unknown class"),
        pytest.param(pod({}, container("main"), claiming("b", "c")), KNOWN, [], id="a claim of another container"),
        pytest.param(pod({NAME: "b"}, container("main"), claiming("b", "c")), KNOWN, WARNED,
            id="a claim of the named container"),
        pytest.param(pod({NAME: "i"}, container("main"), init=[claiming("i", "c")]), KNOWN, WARNED,
            id="a claim of the named init container"),
        pytest.param(pod({}, init=[claiming("i", "c")]), KNOWN, [], id="a claim of an init container not named"),
        pytest.param(pod({names.DEFAULT_CONTAINER: "b"}, container("main"), container("b", limits={CLASS: 1})), KNOWN,
            DENIED, id="a class of the default container"),
        pytest.param(pod({names.DEFAULT_CONTAINER: "b"}, container("main", limits={CLASS: 1}), container("b")), KNOWN,
            [], id="a class of the first beside the default container"),
        pytest.param(pod({}, container(limits={CLASS: 1})), KNOWN, DENIED, id="a class known to be a GPU"),
        pytest.param(pod({}, container(limits={CLASS: 1})), Policy(), WARNED, id="a class not known"),
        pytest.param(pod({}, container("main"), container("b", limits={CLASS: 1})), KNOWN, [],
            id="that class elsewhere"),
        pytest.param(pod({}, container(requests={CLASS: 1}, limits={CLASS: 1, CLASS + "2": 1})), KNOWN, DENIED,
            id="a known class and another"),
    ],
)  # fmt: skip
def test_a_share_beside_a_claim(raw: Json, policy: Policy, expected: Found) -> None:
    raw["metadata"]["annotations"]["gpu-fraction"] = "0.5"
    assert violations(raw, policy) == expected


@pytest.mark.parametrize("key", names.OWNED_ANNOTATIONS)
@pytest.mark.parametrize(
    ("before", "after"), [({}, "0.5"), ("0.5", {}), ("0.5", "0.6"), ({}, ""), ("", {}), ("bad", "0.5")]
)
def test_an_owned_annotation_is_fixed(key: str, before: Any, after: Any) -> None:
    def with_value(value: Any) -> Json:
        return pod({} if value == {} else {key: value})

    assert brief(update_errors(with_value(after), with_value(before))) == [("immutable", key)]


def test_an_update_validates_only_changes() -> None:
    bad = {"gpu-fraction": "7", "gpu-memory": "no", "mps": "true"}
    old = pod(bad, container(limits={GPU: 0.5}))
    new = pod({**bad, "other": "x"}, container(limits={GPU: 0.5}), ephemeralContainers=[{"name": "debug"}])
    assert update_errors(new, old) == []


def test_all_errors_together_in_a_fixed_order() -> None:
    annotations = {"mps": "TRUE", NAME: "trainer", COUNT: "0", "gpu-memory": "4Gi", "gpu-fraction": "1.5"}
    raw = pod(annotations, container(limits={MIG: 1, GPU: 0.5}, requests={GPU: 1}), init=[container("i")])
    expected = [
        ("fraction-range", "gpu-fraction"),
        ("memory-and-fraction", "gpu-memory"),
        ("memory-format", "gpu-memory"),
        ("num-devices-format", COUNT),
        ("container-name", NAME),
        ("[mps-spelling]", "mps"),
        ("sharing-disabled", "gpu-fraction"),
        ("share-and-mig", "gpu-fraction"),
        ("quantity-integer", LIMIT),
        ("request-differs", REQUEST),
    ]
    assert violations(raw, Policy(sharing=False)) == expected
    reordered_pod = pod(
        dict(reversed(annotations.items())),
        container(limits={GPU: 0.5, MIG: 1}, requests={GPU: 1}),
        init=[container("i")],
    )
    assert violations(reordered_pod, Policy(sharing=False)) == expected
    assert violations(pod({"mps": "false"}), Policy(sharing=False)) == [], "no share"


def test_every_privileged_container_beside_a_share_is_named() -> None:
    side, log = ({**container(name), "securityContext": {"privileged": True}} for name in ("side", "log"))
    raw = pod({"gpu-fraction": "0.5"}, container("main"), side, init=[log])
    [warning] = request_errors(raw, DEFAULT)
    assert (warning.rule.id, warning.rule.severity) == ("gpu_request/share-privileged", Severity.WARNS)
    assert warning.message.endswith('privileged: container "log", container "side"')
    assert request_errors(pod({}, side), DEFAULT) == []


def test_a_message_names_a_bounded_number_of_containers() -> None:
    raw = pod({"gpu-fraction": "0.5"}, *(container(f"worker-{i}", limits={GPU: 1}) for i in range(300)))
    [fault] = request_errors(raw, DEFAULT)
    assert '"worker-4": ' in fault.message
    assert "and 295 more" in fault.message
    assert "worker-5" not in fault.message
