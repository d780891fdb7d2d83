"""Facts of a status: what is stored is what is read, also where the CRD prunes the fields."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.api.request_facts import (
    MAX_CARRIED,
    MAX_OBJECTS,
    FailureFact,
    WaitFact,
    as_annotation,
    failure_of,
    reported_status,
    wait_of,
)
from bowline.testing.builders import bind_request, stored

CLAIM = ObjectRef("v1", "PersistentVolumeClaim", ObjectKey("team", "data"))
CLASS = ObjectRef("storage.k8s.io/v1", "StorageClass", ObjectKey("", "late"))
WAIT = WaitFact("plugin volume_binding", (CLAIM, CLASS), datetime(2026, 1, 1, 12, tzinfo=UTC))
FAILURE = FailureFact("Rejected", "licence", "licence/NoLicence", (CLAIM,))


def test_what_is_written_is_read() -> None:
    status = {"wait": WAIT.as_field(), "failure": FAILURE.as_field()}
    assert (wait_of(status), failure_of(status)) == (WAIT, FAILURE)
    assert wait_of({"wait": WaitFact("gang").as_field()}) == WaitFact("gang")


def test_what_is_not_understood_is_absent() -> None:
    assert wait_of({"wait": {"objects": [1, {"kind": "Pod"}], "deadline": "soon"}}) == WaitFact(
        "", (ObjectRef("", "Pod", ObjectKey("", "")),)
    )
    assert wait_of({"wait": {"objects": 1}}) == WaitFact("")


def test_the_number_of_objects_is_bounded() -> None:
    refs = [ObjectRef("v1", "Pod", ObjectKey("team", str(number))) for number in range(40)]
    assert len(WaitFact("x", (*refs, *refs)).as_field()["objects"]) == MAX_OBJECTS


def carrying(annotation: str, **status: Any) -> dict[str, Any]:
    raw = stored(bind_request())
    metadata = {**raw["metadata"], "annotations": {names.CARRIED_STATUS: annotation}}
    return {**raw, "metadata": metadata, "status": status}


def test_the_annotation_has_what_the_crd_prunes() -> None:
    carried = as_annotation({"wait": WAIT.as_field(), "reason": "of earlier"})
    request = carrying(carried, phase="Pending", reason="now")
    assert reported_status(request) == {"phase": "Pending", "reason": "now", "wait": WAIT.as_field()}
    assert decode_bind_request(request).status == reported_status(request)


@pytest.mark.parametrize(
    ("annotation", "phase"),
    [
        pytest.param('{"wait": {}}', "Succeeded", id="a bound pod waits for nothing"),
        pytest.param("[1]", "Pending", id="another type"),
        pytest.param("{", "Pending", id="no JSON"),
        pytest.param("[" * 10_000, "Pending", id="nested too deeply"),
        pytest.param(f'{{"wait": "{"x" * MAX_CARRIED}"}}', "Pending", id="too long"),
    ],
)
def test_another_annotation_is_ignored(annotation: str, phase: str) -> None:
    assert reported_status(carrying(annotation, phase=phase)) == {"phase": phase}


@pytest.mark.parametrize(
    ("pod_name", "key", "paths"),
    [
        pytest.param("train", ObjectKey("default", "train"), [], id="its own name"),
        pytest.param("other", ObjectKey("default", ""), ["metadata.name"], id="another name: it is for no pod"),
        pytest.param("", ObjectKey("default", ""), ["spec.podName"], id="no name"),
    ],
)
def test_the_pod_of_a_request_has_its_name(pod_name: str, key: ObjectKey, paths: list[str]) -> None:
    request = decode_bind_request(stored(bind_request("train", podName=pod_name)))
    assert request.pod_key == key
    assert [error.path for error in request.errors] == paths
    assert (request.spec is None) is bool(paths)
    later = decode_bind_request(stored(bind_request("train", podName=pod_name), version="2"), request)
    assert later.errors == request.errors
