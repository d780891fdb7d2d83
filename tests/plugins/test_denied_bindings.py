"""Bindings that a policy of somebody else denies: another node is suggested only until that has not helped."""

from itertools import count

from tests.live import Live
from tests.plugins.denied_bindings import denied_bindings, denied_node


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
