"""How the storm checks its end: a claim of success or failure counts only if it is true."""

from typing import Any

import pytest

from tests.faults.storm import classify
from tests.faults.world import Asked, Wait

ASKED = Asked("uid", "node-a")
REFUSED = Asked("uid", "node-a", refused=True)
WAITS = Asked("uid", "node-a", wait=Wait.OPENS)
NEVER = Asked("uid", "node-a", wait=Wait.NEVER)


def pods(node: str = "", uid: str = "uid") -> dict[str, Any]:
    return {"p": {"metadata": {"uid": uid}, "spec": {"nodeName": node}}}


def failed_status(reason: str, attempts: int = 0) -> dict[str, Any]:
    return {"phase": "Failed", "reason": f"{reason}: why", "failedAttempts": attempts}


@pytest.mark.parametrize(
    ("status", "intent", "pods_by_name", "verdict"),
    [
        pytest.param({"phase": "Succeeded"}, ASKED, pods("node-a"), "Succeeded", id="the pod is on its node"),
        pytest.param({"phase": "Succeeded"}, ASKED, pods(), "UNTRUE Succeeded", id="the pod is unbound"),
        pytest.param(
            {"phase": "Succeeded"}, ASKED, pods("node-b"), "UNTRUE Succeeded", id="the pod is on another node"
        ),
        pytest.param(
            {"phase": "Succeeded"}, ASKED, {}, "Succeeded", id="the pod is deleted, the observer has checked it"
        ),
        pytest.param(failed_status("NodeGone"), ASKED, pods(), "UNTRUE NodeGone", id="the node exists"),
        pytest.param(failed_status("NodeGone"), Asked("uid", "deleted"), pods(), "Failed, NodeGone", id="no node"),
        pytest.param({"phase": "Succeeded"}, WAITS, pods("node-a"), "Succeeded", id="its gate has opened"),
        pytest.param(
            {"phase": "Succeeded"}, NEVER, pods("node-a"), "UNTRUE Succeeded", id="bound before its gate opened"
        ),
        pytest.param(failed_status("WaitTimeout"), NEVER, pods(), "Failed, WaitTimeout", id="its gate never opens"),
        pytest.param(
            failed_status("WaitTimeout"),
            WAITS,
            pods(),
            "UNTRUE WaitTimeout",
            id="its gate has opened, and it timed out",
        ),
        pytest.param(
            failed_status("WaitTimeout"), ASKED, pods(), "UNTRUE WaitTimeout", id="it had nothing to wait for"
        ),
        pytest.param(failed_status("PodGone"), ASKED, pods(uid="other"), "Failed, PodGone", id="another pod"),
        pytest.param(failed_status("PodGone"), ASKED, pods(), "UNTRUE PodGone", id="the pod exists"),
        pytest.param(failed_status("Rejected"), REFUSED, pods(), "Failed, Rejected", id="it had to be rejected"),
        pytest.param(failed_status("Rejected"), ASKED, pods(), "UNTRUE Rejected", id="it had to succeed"),
        pytest.param(
            failed_status("BoundElsewhere"), ASKED, pods("node-b"), "Failed, BoundElsewhere", id="bound elsewhere"
        ),
        pytest.param(failed_status("BoundElsewhere"), ASKED, pods(), "UNTRUE BoundElsewhere", id="not bound at all"),
        pytest.param(
            failed_status("Invalid"), ASKED, pods(), "UNTRUE Invalid", id="a reason that no request here can have"
        ),
        pytest.param({}, ASKED, pods(), "not ended", id="never processed"),
        pytest.param({"phase": "Pending"}, ASKED, pods(), "not ended", id="in progress"),
    ],
)
def test_the_end_of_a_request_is_checked(
    status: dict[str, Any], intent: Asked, pods_by_name: dict[str, Any], verdict: str
) -> None:
    assert classify({"spec": {"podName": "p"}, "status": status}, intent, {"deleted"}, pods_by_name) == verdict
