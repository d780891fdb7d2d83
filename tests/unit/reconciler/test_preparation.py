"""The Prepared condition of a bound pod's request, by what is known of its preparation."""

from collections.abc import Mapping
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object
from bowline.testing.builders import pod
from bowline_reconciler.decide.report import BindingContent, preparation
from tests.builders import request

CARRIED = {names.PREPARED_FOR: "request-uid"}
INCOMPLETE = {"conditions": [{"type": "RolledBack", "status": "False"}]}


CONTENT = {
    "annotations": {**CARRIED, "example.com/device": "0"},
    "labels": {"example.com/shared": "yes"},
}
ANNOTATED, LABELLED = CONTENT["annotations"], CONTENT["labels"]


def bound(annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    made = pod()
    made["metadata"] |= {"annotations": dict(annotations or {}), "labels": dict(labels or {})}
    return made


@pytest.mark.parametrize(
    ("req", "intact", "content", "bound_pod", "prepared", "named"),
    [
        pytest.param(request(), True, CONTENT, bound(ANNOTATED, LABELLED), "True", "", id="all that it contains"),
        pytest.param(request(), True, CONTENT, bound(), "Unknown", names.PREPARED_FOR, id="bound by somebody else"),
        pytest.param(request(), True, CONTENT, bound(CARRIED, LABELLED), "Unknown", "annotation example.com/device"),
        pytest.param(request(), True, CONTENT, bound(ANNOTATED, {"example.com/shared": "no"}), "Unknown", "label"),
        pytest.param(request(), True, {}, bound(CARRIED), "True", "", id="by a process before this one"),
        pytest.param(request(), True, {}, bound(), "Unknown", "no attempt", id="no attempt is known"),
        pytest.param(request(), True, {}, bound({names.PREPARED_FOR: "another"}), "Unknown", "no attempt"),
        pytest.param(request(), False, CONTENT, bound(ANNOTATED, LABELLED), "Unknown", "", id="rolled back before"),
        pytest.param(request(INCOMPLETE), True, {}, bound(CARRIED), "Unknown", "", id="partly rolled back"),
    ],
)
def test_prepared_is_reported_only_by_the_evidence_of_the_pod(
    req: BindRequest, intact: bool, content: BindingContent, bound_pod: Object, prepared: str, named: str
) -> None:
    condition = preparation(req, intact, bound_pod, content).condition
    assert condition[0] == prepared
    assert named in condition[2]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param({}, "", id="a plain pod needs nothing"),
        pytest.param({"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.5"},
            "selectedGPUGroups": ["g"]}, "Fraction", id="a share needs its device"),
        pytest.param({"resourceClaimAllocations": [{"name": "c", "allocation": {}}]}, "resourceClaimAllocations",
            id="claims need their allocation"),
    ],
)  # fmt: skip
def test_a_pod_that_needs_preparation_and_has_none_known_is_warned_about(spec: dict[str, Any], named: str) -> None:
    result = preparation(request(**spec), True, bound(), {})
    assert bool(result.warning) is bool(named)
    assert named in result.condition[2]
    assert preparation(request(**spec), True, bound(CARRIED), {}).warning == ""
