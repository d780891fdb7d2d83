"""The comparison of the chart's rights with the calls in an audit log (`tests/rights.py`)."""

import json
from typing import Any

from bowline.plugins.gpu_sharing.agent.app import PROGRAM as AGENT
from tests.rights import Right, calls_of, is_denied, rights_of, used_right

ROLE = {
    "kind": "ClusterRole",
    "metadata": {"name": "reader"},
    "rules": [{"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get"]}, {"apiGroups": ["apps"],
        "resources": ["deployments"], "resourceNames": ["b-config-0123"], "verbs": ["get"]}],
}  # fmt: skip
PODS = Right("ClusterRole reader", "pods", "", "get")
DECISION = "authorization.k8s.io/decision"
STATUS = Right("ClusterRole reader", "pods/status", "", "get")
NAMED = Right("ClusterRole reader", "apps/deployments", "b-config", "get")


def event(reference: dict[str, str], **changes: Any) -> dict[str, Any]:
    reason = 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to ServiceAccount "a/b"'
    annotations = {DECISION: "allow", "authorization.k8s.io/reason": reason}
    common = {"userAgent": "bowline-reconciler/1", "stage": "ResponseComplete", "verb": "get"}
    return {**common, "annotations": annotations, "objectRef": reference, **changes}


def test_a_call_uses_the_right_of_its_resource_and_name() -> None:
    rights = rights_of([ROLE])
    assert rights == {PODS, STATUS, NAMED}
    assert used_right(event({"resource": "pods", "name": "a"}), rights) == PODS
    assert used_right(event({"resource": "pods", "name": "a", "subresource": "status"}), rights) == STATUS
    named = {"apiGroup": "apps", "resource": "deployments", "name": "b-config-4567"}
    assert used_right(event(named), rights) == NAMED
    assert used_right(event({**named, "name": "other"}), rights) is None
    assert used_right(event({"resource": "pods"}, verb="list"), rights) is None


def test_only_completed_calls_of_bowlines_programs_count_and_a_denied_one_is_seen() -> None:
    own, denied = event({}, userAgent=f"{AGENT}/http1.1"), event({}, annotations={DECISION: "forbid"})
    others = [event({}, userAgent="kubectl/v1"), event({}, stage="ResponseStarted")]
    assert list(calls_of(json.dumps(each) for each in (*others, own, denied))) == [own, denied]
    assert [is_denied(own), is_denied(denied)] == [False, True]
