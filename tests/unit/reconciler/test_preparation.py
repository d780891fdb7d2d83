"""The Prepared condition of a bound pod's request, by what is known of its preparation."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.testing.builders import pod
from bowline_reconciler.decide.report import preparation
from tests.builders import request

CARRIED = {names.PREPARED_FOR: "request-uid"}
INCOMPLETE = {"conditions": [{"type": "RolledBack", "status": "False"}]}


def bound(annotations: dict[str, str] | None = None) -> dict[str, Any]:
    made = pod()
    made["metadata"]["annotations"] = annotations or {}
    return made


@pytest.mark.parametrize(
    ("req", "was_prepared", "intact", "annotations", "prepared"),
    [
        pytest.param(request(), True, True, {}, "True", id="an attempt of this process"),
        pytest.param(request(), False, True, CARRIED, "True", id="an attempt of a process before this one"),
        pytest.param(request(), False, True, {}, "Unknown", id="no attempt is known"),
        pytest.param(
            request(), False, True, {names.PREPARED_FOR: "another"}, "Unknown", id="an attempt for another request"
        ),
        pytest.param(request(), True, False, CARRIED, "Unknown", id="rolled back before the Binding took effect"),
        pytest.param(request(INCOMPLETE), True, True, CARRIED, "Unknown", id="partly rolled back"),
    ],
)
def test_prepared_is_reported_only_for_a_valid_attempt(
    req: BindRequest, was_prepared: bool, intact: bool, annotations: dict[str, str], prepared: str
) -> None:
    assert preparation(req, was_prepared, intact, bound(annotations)).condition[0] == prepared


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param({}, "", id="a plain pod needs nothing"),
        pytest.param(
            {
                "receivedResourceType": "Fraction",
                "receivedGPU": {"count": 1, "portion": "0.5"},
                "selectedGPUGroups": ["g"],
            },
            "Fraction",
            id="a share needs its device",
        ),
        pytest.param(
            {"resourceClaimAllocations": [{"name": "c", "allocation": {}}]},
            "resourceClaimAllocations",
            id="claims need their allocation",
        ),
    ],
)
def test_a_pod_that_needs_preparation_and_has_none_known_is_warned_about(spec: dict[str, Any], named: str) -> None:
    result = preparation(request(**spec), was_prepared=False, intact=True, pod=bound())
    assert bool(result.warning) is bool(named)
    assert named in result.condition[2]
    assert preparation(request(**spec), was_prepared=True, intact=True, pod=bound()).warning == ""
