"""The generated CRD as data: it matches the models, and a structural schema can express it."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequestSpec, decode_spec
from tests.api.kai import DIFFERENCES, OWN_FIELDS, REQUESTS, SCHEMAS
from tests.api.samples import GROUP, ON_THE_WIRE
from tools.generate import crd

SPEC = crd.spec_schema()


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def version() -> Any:
    (only,) = crd.custom_resource_definition()["spec"]["versions"]
    return only


def test_every_field_has_a_description() -> None:
    unsaid = [
        path
        for part in ("spec", "status")
        for path, node in nodes(version()["schema"]["openAPIV3Schema"]["properties"][part], part)
        if not node.get("description") and not path.endswith("[]")
    ]
    assert unsaid == []


def test_every_field_of_the_decision_but_the_limit_is_immutable() -> None:
    (rule,) = (rule for rule in SPEC["x-kubernetes-validations"] if "oldSelf" in rule["rule"])
    wire = {field.alias or "" for field in BindRequestSpec.model_fields.values()}
    for f in wire - {"backoffLimit"}:
        same = f"(has(self.{f})==has(oldSelf.{f}) && (!has(self.{f}) || self.{f}==oldSelf.{f}))"
        assert same in rule["rule"]
        assert f"({same} ? '' : ' {f}')" in rule["messageExpression"]
    assert "backoffLimit" not in rule["rule"] + rule["messageExpression"]
    assert rule["rule"].startswith("self == oldSelf || "), "most writes change no field of the decision"
    assert "optionalOldSelf" not in rule


def test_what_is_required_and_bounded() -> None:
    assert SPEC["required"] == ["podName", "selectedNode"]
    for path, node in nodes(SPEC):
        if node.get("type") == "array":
            assert node["maxItems"] >= 256, f"{path}: a bound is for the rules' cost, not for users"
        if node.get("type") == "integer":
            assert node["minimum"] == 0, path
            assert node["format"] == "int32", path


def field_types(schema: Any) -> dict[str, str]:
    """Return the type of each field of the spec by its path; ``?`` for any."""
    return {
        path.removeprefix("."): str(node.get("type", "?"))
        for path, node in nodes(schema)
        if path and ".amount[]" not in path and "[].allocation" not in path.removesuffix("[].allocation")
    }


@pytest.mark.parametrize("version", SCHEMAS)
def test_the_schema_has_every_field_of_each_kai_scheduler(version: str) -> None:
    ours = field_types(SPEC)
    differences = {path for path, kind in SCHEMAS[version].items() if ours.get(path) != kind}
    assert differences == DIFFERENCES.keys() & SCHEMAS[version].keys()
    assert all(ours[path] == "?" for path in differences), "an accepted difference is that any type is stored"


def test_fields_that_no_kai_scheduler_has_are_listed() -> None:
    newest = list(SCHEMAS.values())[-1]
    assert {path for path in field_types(SPEC) if "[]" not in path} - newest.keys() == OWN_FIELDS.keys()


@pytest.mark.parametrize("body", [request for requests in REQUESTS.values() for request in requests])
def test_requests_of_each_kai_scheduler_are_decoded(body: dict[str, Any]) -> None:
    decoded_spec, errors = decode_spec(body)
    assert errors == ()
    assert decoded_spec is not None
    is_share = body["receivedResourceType"] == "Fraction"
    assert decoded_spec.gpu_groups == ((GROUP,) if is_share else ())
    modes = [group.get("computeSharingMode") for group in body.get("selectedFractionalGpuGroups", ())]
    assert decoded_spec.compute_modes == ({GROUP: "sm-sharing"} if "sm-sharing" in modes else {})


@pytest.mark.parametrize("body", ON_THE_WIRE)
def test_the_models_accept_what_the_scheduler_writes(body: dict[str, Any]) -> None:
    spec, faults = decode_spec(body)
    assert faults == ()
    assert spec is not None
