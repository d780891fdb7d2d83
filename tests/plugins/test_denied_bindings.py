"""Bindings that a policy of somebody else denies: another node is suggested only until that has not helped."""

from itertools import count

from bowline.api.failed_decision import failed_decision_of
from tests.live import Live
from tests.plugins.denied_bindings import denied_bindings


def denied_node(pair: Live, name: str) -> str | None:
    """Return the node of the pod's decision that has failed."""
    failed = failed_decision_of(pair.pod(name))
    return failed.decision.node if failed is not None and failed.has_ended else None


def test_a_policy_that_denies_every_binding_suggests_no_third_node(pair: Live) -> None:
    """A scheduler that obeys would exclude one node after another."""
    with denied_bindings(pair):
        for number in count():  # until the API server applies the policy
            name = f"pod-{number}"
            pair.create_pod(name)
            pair.request_bind(name)
            status = pair.phase(name, "Failed", "Succeeded")["status"]
            if status["phase"] == "Failed":
                break
        assert status["reason"].startswith("Rejected: ")
        assert status["suggestion"] == "RescheduleElsewhere"
        for node, before in (
            ("gpu-node-1", "gpu-node-0"),
            ("gpu-node-2", "gpu-node-1"),
            ("gpu-node-0", "gpu-node-2"),
        ):
            pair.until("the failure is recorded", lambda node=before: denied_node(pair, name) == node)  # type: ignore[misc]
            pair.kubectl("delete", "bindrequest", name)
            pair.request_bind(name, node=node)
            status = pair.phase(name, "Failed", "Succeeded")["status"]
            assert status["phase"] == "Failed"
            assert "suggestion" not in status
            assert status["reason"].endswith(f"node {before} was denied in the same words, so no other node helps")
