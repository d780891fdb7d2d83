"""A decision that has failed is denied at creation for a time."""

from typing import Any

import pytest

from bowline.api.failed_decision import FailedDecision, failed_decision_of
from bowline.testing.builders import bind_request
from tests.live import Live


def fail(pair: Live, node: str) -> None:
    """Create a pod, and a decision for it that fails; wait for its condition, and delete the request."""
    pair.create_pod()
    pair.request_bind(node=node)
    pair.phase("pod", "Failed")
    pair.until("the pod has the failed decision", lambda: ended(pair))
    pair.kubectl("delete", "bindrequest", "pod")


def ended(pair: Live) -> FailedDecision | None:
    """The pod's decision that has ended Failed; None if there is none."""
    failure = failed_decision_of(pair.pod())
    return failure if failure is not None and failure.has_ended else None


def repeat(pair: Live, node: str, **spec: Any) -> str:
    """Create the request again; returns the denial, empty if it is accepted."""
    body = bind_request("pod", node, pair.namespace, pair.pod()["metadata"]["uid"], **spec)
    return pair.kubectl("create", "-f", "-", objects=body, check=False).stderr


@pytest.fixture
def node(pair: Live) -> str:
    """The name of a node that does not exist."""
    return f"node-{pair.namespace}"


def test_a_repeated_failure_is_denied_with_its_reason_and_accepted_later(pair: Live, node: str) -> None:
    def denied() -> str | None:
        """Fail again until the repetition came within the five seconds."""
        pair.kubectl("delete", "bindrequest/pod", "pod/pod", "--ignore-not-found", "--grace-period=0", "--force")
        fail(pair, node)
        return repeat(pair, node) or None

    denial = pair.until("a repetition is denied", denied)
    assert "* spec.selectedNode: " in denial
    assert f"NodeGone: node {node} does not exist" in denial
    assert "bindrequest/repeated" in denial
    first = failed_decision_of(pair.pod())
    assert first is not None
    pair.until("the decision is accepted again", lambda: repeat(pair, node) == "")
    pair.phase("pod", "Failed")
    second = pair.until(
        "the second failure is stored", lambda: failure if (failure := ended(pair)) and failure.failures > 1 else None
    )
    assert second.first == first.first
