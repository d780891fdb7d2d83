"""The comparison of the chart's rights with the calls in an audit log (`tests/rights.py`)."""

import json
from typing import Any

from bowline.plugins.gpu_sharing.agent.app import PROGRAM as AGENT
from tests.rights import Right, calls_of, is_denied, rights_of, used_right

ROLE = {
    "kind": "ClusterRole",
    "metadata": {"name": "reader"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["b-config-0123"], "verbs": ["get"]},
    ],
}
PODS = Right("ClusterRole reader", "pods", "", "get")
STATUS = Right("ClusterRole reader", "pods/status", "", "get")
NAMED = Right("ClusterRole reader", "apps/deployments", "b-config", "get")


def event(reference: dict[str, str], **changes: Any) -> dict[str, Any]:
    reason = 'RBAC: allowed by ClusterRoleBinding "reader" of ClusterRole "reader" to ServiceAccount "a/b"'
    annotations = {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": reason}
    common = {"userAgent": "bowline-reconciler/1", "stage": "ResponseComplete", "verb": "get"}
    return {**common, "annotations": annotations, "objectRef": reference, **changes}


def test_a_role_has_one_right_for_each_verb_resource_and_name() -> None:
    assert rights_of([ROLE]) == {PODS, STATUS, NAMED}


def test_a_call_uses_the_right_of_its_resource_and_name() -> None:
    rights = rights_of([ROLE])
    assert used_right(event({"resource": "pods", "name": "a"}), rights) == PODS
    assert used_right(event({"resource": "pods", "name": "a", "subresource": "status"}), rights) == STATUS
    named = {"apiGroup": "apps", "resource": "deployments", "name": "b-config-4567"}
    assert used_right(event(named), rights) == NAMED
    assert used_right(event({**named, "name": "other"}), rights) is None
    assert used_right(event({"resource": "pods"}, verb="list"), rights) is None


def test_only_completed_calls_of_bowlines_programs_count() -> None:
    reference = {"resource": "pods"}
    own_events = [event(reference), event(reference, userAgent=f"{AGENT}/http1.1")]
    other_events = [event(reference, userAgent="kubectl/v1"), event(reference, stage="ResponseStarted")]
    assert list(calls_of(json.dumps(each) for each in (*other_events, *own_events))) == own_events


def test_a_denied_call_is_seen() -> None:
    assert is_denied(event({}, annotations={"authorization.k8s.io/decision": "forbid"}))
    assert not is_denied(event({}))
