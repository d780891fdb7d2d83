"""Which taints keep which pods away, as kube-scheduler decides."""

from typing import Any

import pytest

from bowline.api.taints import CORDONED, hard_taints, untolerated

DEDICATED = {"key": "dedicated", "value": "a", "effect": "NoSchedule"}
GONE = {"key": "gone", "effect": "NoExecute"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
SLOW = {"key": "speed", "value": "-5", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "toleration", "is_tolerated"),
    [
        pytest.param(DEDICATED, {"key": "dedicated", "value": "a"}, True, id="Equal is the default"),
        pytest.param(DEDICATED, {"key": "dedicated", "operator": "Equal", "value": "b"}, False, id="another value"),
        pytest.param(DEDICATED, {"key": "dedicated", "operator": "Exists"}, True, id="Exists"),
        pytest.param(DEDICATED, {"key": "other", "operator": "Exists"}, False, id="another key"),
        pytest.param(DEDICATED, {"operator": "Exists"}, True, id="every key"),
        pytest.param(DEDICATED, {"operator": "Exists", "effect": "NoExecute"}, False, id="another effect"),
        pytest.param(DEDICATED, {"operator": "Exists", "effect": "NoSchedule"}, True, id="the same effect"),
        pytest.param(GONE, {"key": "gone", "operator": "Exists", "tolerationSeconds": 300}, True, id="for a time"),
        pytest.param(GONE, {"key": "gone"}, True, id="no value on both sides"),
        pytest.param(CORDONED, {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}, True,
            id="DaemonSet"),
        # As the API server adds it to every pod: the node's other taint of the same condition is NoSchedule.
        pytest.param(NOT_READY, {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            False, id="a node that is not ready"),
        pytest.param(SLOW, {"key": "speed", "operator": "Lt", "value": "0"}, True, id="Lt"),
        pytest.param(SLOW, {"key": "speed", "operator": "Gt", "value": "0"}, False, id="Gt"),
        pytest.param(DEDICATED, {"key": "dedicated", "operator": "Gt", "value": "0"}, False, id="not an integer"),
        pytest.param(SLOW, {"key": "speed", "operator": "New", "value": "-6"}, False, id="an unknown operator"),
    ],
)  # fmt: skip
def test_a_toleration(taint: dict[str, str], toleration: dict[str, Any], is_tolerated: bool) -> None:
    assert untolerated([taint], [toleration]) == (None if is_tolerated else taint)


def test_hard_taints_include_a_cordon_and_no_preference() -> None:
    assert hard_taints({}) == ()
    assert hard_taints({"taints": None, "unschedulable": False}) == ()
    preference = {"key": "x", "effect": "PreferNoSchedule"}
    assert hard_taints({"taints": [preference, GONE], "unschedulable": True}) == (CORDONED, GONE)
