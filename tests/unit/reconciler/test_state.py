"""What is remembered of a request: its waits, and whose state it is."""

from datetime import timedelta
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.drive.state import RequestStates, WaitState


def version(number: int, uid: str = "request-uid") -> BindRequest:
    return decode_bind_request(stored(bind_request(uid="pod-uid"), uid=uid, version=str(number)))


MINUTE = timedelta(minutes=1)


def test_the_limit_of_a_wait_stands_still_in_a_wait_without_one() -> None:
    """An outage in the middle of a wait ends no request, however long it lasts."""
    wait = WaitState()
    wait.start("plugin a", {"plugin a": MINUTE}, 100.0, None)
    for now in (140.0, 150.0, 5000.0):
        wait.start("plugin a", {}, now, None)
        assert wait.first_waits["plugin a"] == now - 40
    wait.start("plugin a", {"plugin a": MINUTE}, 5010.0, None)
    assert (wait.began, wait.first_waits["plugin a"]) == (4970.0, 4970.0)


def test_the_first_wait_of_a_process_goes_on_from_the_stored_one() -> None:
    wait = WaitState()
    wait.start("plugin a", {"plugin a": MINUTE}, 1000.0, MINUTE)
    assert (wait.began, wait.first_waits, wait.restored_at) == (940.0, {"plugin a": 940.0}, 1000.0)
    wait.start("plugin b", {"plugin b": MINUTE}, 1010.0, MINUTE)
    assert (wait.began, wait.first_waits["plugin b"]) == (940.0, 1010.0)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        pytest.param({"backoffLimit": 3}, True, id="backoffLimit"),
        pytest.param({"podUID": "pod-uid"}, True, id="the UID of its pod becomes known"),
        pytest.param({"podUID": "another"}, False, id="another pod of that name"),
        pytest.param({"podName": "another"}, False, id="another pod"),
        pytest.param({"selectedNode": "another"}, False, id="another node"),
        pytest.param({"selectedGPUGroups": ["a"]}, False, id="another device"),
    ],
)
def test_a_state_in_which_something_has_begun_is_of_one_decision(change: dict[str, Any], is_same: bool) -> None:
    states, request = RequestStates(), version(1)
    raw = stored(bind_request(uid="pod-uid", **change), uid="request-uid", version="2", generation=2)
    changed_request = decode_bind_request(raw)
    assert states.ensure(request) is states.of(changed_request)
    states.ensure(request).begun_request = request
    assert (states.of(changed_request) is not None) is is_same
    assert (states.ensure(changed_request).begun_request is not None) is is_same
