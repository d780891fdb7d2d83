"""A decision that has failed is denied at creation while nothing that it depends on has changed."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.failed_decision import FailedDecision, failed_decision_of
from bowline.api.meta import format_time
from bowline.testing.builders import bind_request
from tests.live import Live
from tests.plugins.claims import claim, claim_decisions, publish
from tests.plugins.storage import Storage

NODES = "/api/v1/nodes"


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


def postpone(pair: Live, by: timedelta) -> None:
    """Let the decision have failed later than it did, so that its backoff does not end during the test."""
    (condition,) = (c for c in pair.pod()["status"]["conditions"] if c["type"] == names.CONDITION_DECISION_FAILED)
    touch = {"status": {"conditions": [{**condition, "lastProbeTime": format_time(datetime.now(UTC) + by)}]}}
    pair.kubectl("patch", "pod", "pod", "--subresource=status", f"--patch={json.dumps(touch)}")


@pytest.fixture
def node(pair: Live) -> str:
    """The name of a node that does not exist."""
    return f"node-{pair.namespace}"


def test_a_repeated_failure_is_denied_with_its_reason_until_its_node_changes(pair: Live, node: str) -> None:
    fail(pair, node)
    postpone(pair, timedelta(seconds=30))
    for _ in range(2):
        denial = repeat(pair, node)
        assert "* spec.selectedNode: " in denial
    pair.cluster.api.post(NODES, {"metadata": {"name": node}})
    try:
        assert repeat(pair, node) == ""
        pair.phase("pod", "Succeeded")
    finally:
        pair.cluster.api.delete(f"{NODES}/{node}")


def test_the_denial_of_a_repeated_failure_has_the_failures_text_and_its_rule(pair: Live, node: str) -> None:
    fail(pair, node)
    postpone(pair, timedelta(seconds=30))
    denial = repeat(pair, node)
    assert f"NodeGone: node {node} does not exist" in denial
    assert "bindrequest/repeated" in denial


def test_another_node_a_changed_pod_and_another_pod_of_the_name_are_no_repetition(pair: Live, node: str) -> None:
    fail(pair, node)
    assert repeat(pair, f"{node}-2") == ""
    pair.kubectl("delete", "bindrequest", "pod")
    pair.kubectl("label", "pod", "pod", "touched=yes")
    assert repeat(pair, node) == ""
    pair.phase("pod", "Failed")
    pair.kubectl("delete", "bindrequest/pod", "pod/pod", "--grace-period=0", "--force")
    pair.create_pod()
    assert repeat(pair, node) == ""


def test_the_backoff_grows_with_the_time_of_failures_and_ends(pair: Live, node: str) -> None:
    fail(pair, node)
    first = failed_decision_of(pair.pod())
    assert first is not None
    pair.until("the decision is accepted again", lambda: repeat(pair, node) == "")
    pair.phase("pod", "Failed")

    def second_failure() -> object:
        failure = failed_decision_of(pair.pod())
        return failure if failure is not None and failure.last > first.last else None

    pair.until("the second failure is stored", second_failure)
    second = failed_decision_of(pair.pod())
    assert second is not None
    assert second.first == first.first
    assert second.last - second.first >= first.denied_until(second.last - second.first) - first.last


def test_a_restarted_webhook_denies_what_has_failed_before(pair: Live, node: str) -> None:
    fail(pair, node)
    assert pair.pair.webhook is not None
    assert pair.pair.webhook.stop()
    pair.pair.launch_webhook().wait_ready()
    # The start may have taken longer than the backoff.
    postpone(pair, timedelta(seconds=30))
    assert "bindrequest/repeated" in repeat(pair, node)


@pytest.fixture
def held_device(pair: Live) -> dict[str, Any]:
    """A pod whose claim has another device than the one that the decision, which is returned, gives it."""
    publish(pair.cluster)
    pair.create(claim("data"))
    for name in ("holder", "pod"):
        pair.create_pod(name, resourceClaims=[{"name": "dev", "resourceClaimName": "data"}])
    pair.request_bind("holder", **claim_decisions("d0"))
    pair.phase("holder", "Succeeded")
    return claim_decisions("d1")


@pytest.fixture
def absent_volume(pair: Live) -> Iterator[dict[str, Any]]:
    """A pod for whose PVC there is no volume."""
    storage = Storage(pair)
    storage.make_class()
    storage.make_claim()
    storage.make_pod()
    yield {}
    storage.clean()


@pytest.mark.parametrize(
    ("decision", "kind"),
    [
        pytest.param("held_device", "ResourceClaim", id="of devices"),
        pytest.param("absent_volume", "PersistentVolumeClaim", id="of a volume"),
    ],
)
def test_a_repeated_failure_is_denied_until_the_claim_that_it_names_changes(
    pair: Live, request: pytest.FixtureRequest, decision: str, kind: str
) -> None:
    spec = request.getfixturevalue(decision)
    pair.request_bind(**spec)
    pair.phase("pod", "Failed")
    pair.until("the pod has the failed decision", lambda: ended(pair))
    pair.kubectl("delete", "bindrequest", "pod")
    postpone(pair, timedelta(seconds=30))
    denial = repeat(pair, "gpu-node-0", **spec)
    assert "* spec.selectedNode: " in denial
    pair.kubectl("annotate", kind, "data", "touched=yes")
    assert repeat(pair, "gpu-node-0", **spec) == ""


def test_what_the_webhook_may_not_read_is_allowed(pair: Live, node: str) -> None:
    role = "clusterrole/bowline-webhook"
    rules = json.loads(pair.cluster.kubectl("get", role, "-o=json").stdout)["rules"]
    fail(pair, node)
    withheld = [rule for rule in rules if "pods" not in rule["resources"]]
    patch_rules(pair, role, withheld)
    try:
        pair.until("the right is withdrawn", lambda: repeat(pair, node) == "" or None)
    finally:
        patch_rules(pair, role, rules)


def patch_rules(pair: Live, role: str, rules: list[dict[str, object]]) -> None:
    pair.cluster.kubectl("patch", role, "--type=merge", f"--patch={json.dumps({'rules': rules})}")
