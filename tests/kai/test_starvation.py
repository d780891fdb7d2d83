"""A pod whose bind always fails does not keep its neighbours from the node."""

import json
from collections.abc import Iterator
from typing import Any

from tests.kai.team import Team, needs_kai
from tests.live import FLAKY

pytestmark = needs_kai

WHOLE_NODE: dict[str, Any] = {"gpus": 8, "nodeSelector": {"kubernetes.io/hostname": "gpu-node-1"}}


def decisions(team: Team) -> Iterator[tuple[str, int]]:
    """Pod and HTTP status of each BindRequest that the scheduler has tried to create in the namespace, in order."""
    for line in team.live.cluster.audit_lines():
        entry = json.loads(line)
        reference = entry.get("objectRef") or {}
        is_decision = entry["verb"] == "create" and reference.get("resource") == "bindrequests"
        if is_decision and reference.get("namespace") == team.live.namespace:
            yield reference["name"], entry["responseStatus"]["code"]


def denial_events(team: Team) -> list[str]:
    """Messages of events about the pod with the rule of the denial."""
    items = json.loads(team.live.kubectl("get", "events", "-o=json").stdout)["items"]
    return [item["message"] for item in items if "bindrequest/repeated" in (item.get("message") or "")]


def test_a_bind_that_always_fails_starves_no_neighbour(team: Team) -> None:
    # The scheduler knows both pods before the first decision fails.
    assert team.live.pair.reconcilers[0].stop()
    team.submit("doomed", annotations={FLAKY: "99"}, **WHOLE_NODE)
    team.request_of("doomed")
    team.submit("neighbour", **WHOLE_NODE)
    team.does_not_fit("neighbour")
    team.live.pair.launch_reconciler().wait_ready()
    team.runs("neighbour")
    attempts = list(decisions(team))
    before = attempts[: attempts.index(("neighbour", 201))]
    # The scheduler decides for a pod once in a cycle. The first decision fails; of the two cycles that follow, one
    # denies its repetition, and in that cycle the neighbour gets the node.
    assert before[0] == ("doomed", 201)
    assert 1 <= len(before) - 1 <= 2, before
    assert before[-1] == ("doomed", 422), before


def test_a_denied_decision_binds_once_its_cause_is_repaired_and_the_time_is_over(team: Team) -> None:
    team.submit("doomed", annotations={FLAKY: "99"}, **WHOLE_NODE)
    team.live.until("a repetition is denied", lambda: ("doomed", 422) in decisions(team) or None)
    team.live.until("the scheduler reports the reason of the denial on the pod", lambda: denial_events(team) or None)
    assert all("BackoffLimitExceeded: " in note and "gave up after" in note for note in denial_events(team))
    team.live.kubectl("annotate", "pod", "doomed", f"{FLAKY}=0", "--overwrite")
    team.runs("doomed")
