"""How the storm judges its end: a claim of success or failure counts only if it is true."""

from typing import Any

import pytest

from tests.faults.storm import judge
from tests.faults.world import Asked, Wait

ASKED = Asked("uid", "node-a")
REFUSED = Asked("uid", "node-a", refused=True)
WAITS = Asked("uid", "node-a", wait=Wait.OPENS)
NEVER = Asked("uid", "node-a", wait=Wait.NEVER)


def pods(node: str = "", uid: str = "uid") -> dict[str, Any]:
    return {"p": {"metadata": {"uid": uid}, "spec": {"nodeName": node}}}


def failed(reason: str, attempts: int = 0) -> dict[str, Any]:
    return {"phase": "Failed", "reason": f"{reason}: why", "failedAttempts": attempts}


@pytest.mark.parametrize(
    ("status", "asked", "found", "verdict"),
    [
        pytest.param({"phase": "Succeeded"}, ASKED, pods("node-a"), "Succeeded", id="the pod is there"),
        pytest.param({"phase": "Succeeded"}, ASKED, pods(), "UNTRUE Succeeded", id="the pod is nowhere"),
        pytest.param({"phase": "Succeeded"}, ASKED, pods("node-b"), "UNTRUE Succeeded", id="the pod is elsewhere"),
        pytest.param({"phase": "Succeeded"}, ASKED, {}, "Succeeded", id="the pod is gone, the observer has judged"),
        pytest.param(failed("NodeGone"), ASKED, pods(), "UNTRUE NodeGone", id="the node is still there"),
        pytest.param(failed("NodeGone"), Asked("uid", "gone"), pods(), "Failed, NodeGone", id="no node"),
        pytest.param({"phase": "Succeeded"}, WAITS, pods("node-a"), "Succeeded", id="its gate has opened"),
        pytest.param(
            {"phase": "Succeeded"}, NEVER, pods("node-a"), "UNTRUE Succeeded", id="bound before a shut gate"
        ),
        pytest.param(failed("WaitTimeout"), NEVER, pods(), "Failed, WaitTimeout", id="its gate never opens"),
        pytest.param(
            failed("WaitTimeout"), WAITS, pods(), "UNTRUE WaitTimeout", id="its gate has opened, it gave up"
        ),
        pytest.param(failed("WaitTimeout"), ASKED, pods(), "UNTRUE WaitTimeout", id="it had nothing to wait for"),
        pytest.param(failed("PodGone"), ASKED, pods(uid="other"), "Failed, PodGone", id="another pod"),
        pytest.param(failed("PodGone"), ASKED, pods(), "UNTRUE PodGone", id="the pod is still there"),
        pytest.param(failed("Rejected"), REFUSED, pods(), "Failed, Rejected", id="it was to be refused"),
        pytest.param(failed("Rejected"), ASKED, pods(), "UNTRUE Rejected", id="nobody wanted it refused"),
        pytest.param(failed("BoundElsewhere"), ASKED, pods("node-b"), "Failed, BoundElsewhere", id="elsewhere"),
        pytest.param(failed("BoundElsewhere"), ASKED, pods(), "UNTRUE BoundElsewhere", id="not bound at all"),
        pytest.param(failed("Invalid"), ASKED, pods(), "UNTRUE Invalid", id="a reason that nothing here can have"),
        pytest.param({}, ASKED, pods(), "not ended", id="never looked at"),
        pytest.param({"phase": "Pending"}, ASKED, pods(), "not ended", id="under way"),
    ],
)
def test_judgement(status: dict[str, Any], asked: Asked, found: dict[str, Any], verdict: str) -> None:
    assert judge({"spec": {"podName": "p"}, "status": status}, asked, {"gone"}, found) == verdict
