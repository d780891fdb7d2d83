"""``decide``: every combination of what it reads, and what holds for every decision.

Fields are abstracted to the classes that the code distinguishes. Whether an object comes from the cache or from a
live read is one of the fields, so the evidence of every decision is known.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from bowline.api.bindrequest import AllocationKind, BindRequest, Phase, decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.api.node_view import NodeView
from bowline.framework.config import Settings
from bowline.framework.interface.status import Answers
from bowline.framework.reason import Reason, Suggestion
from bowline_reconciler.decide.actions import (
    GATES,
    Action,
    Attempt,
    Complete,
    DropFinalizer,
    Fail,
    Forget,
    RequeueAfter,
    Rollback,
    SetOwner,
    Wait,
)
from bowline_reconciler.decide.decide import POD_GRACE, ReadLive, decide
from bowline_reconciler.decide.snapshot import Absent, PodView, Snapshot, Target, Times
from tests.unit.reconciler.choices import Choices, Path, lazy, paths

# The whole space is explored at once.
pytestmark = pytest.mark.timeout(300)

SETTINGS = Settings(scheduler_names=("example-scheduler",))
TAINT = {"key": "x", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
KEY = ObjectKey("ns", "p")
# What a status with an incomplete rollback may say of the failure; another version may have other reasons.
REASONS = ("", "NodeGone", "BackoffLimitExceeded", "NewerReason")
NONE_ANNOUNCED = ("", "NewerReason")
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
_TIMES = (timedelta(0), timedelta(seconds=30), timedelta(days=2))

Decision = Action | ReadLive


def observed(choices: Choices) -> Snapshot:
    """Return a snapshot that chooses what is read of it."""
    ask = choices.choose

    def source(name: str, present: Any) -> Any:
        """Return an object, or why it is absent, consistent with how it was read."""
        if ask(f"live {name}", (False, True)):
            return present if ask(f"{name} exists", (True, False)) else Absent.NOT_FOUND
        return present if ask(f"{name} cached", (True, False)) else Absent.NOT_IN_CACHE

    request, pod, node, times = _request(choices), _pod(choices), _node(choices), _times(choices)
    answers = lazy(
        Answers,
        demands=lambda _: ask("provided", (frozenset(AllocationKind), frozenset())),
        effects=lambda _: ask("side effects", (frozenset(), frozenset({"a"}))),
        errors=lambda _: (),
        holders=lambda _: ask("held", ((), ("a",))),
    )
    return lazy(
        Snapshot,
        request=lambda _: request,
        pod=lambda _: source("pod", pod),
        node=lambda _: source("node", node),
        times=lambda _: times,
        live=lambda _: frozenset(target for target in Target if ask(f"live {target.value}", (False, True))),
        answers=lambda _: answers,
        uninstalling=lambda _: ask("uninstalling", (False, True)),
        was_delayed=lambda _: ask("delayed", (False, True)),
        ending=lambda _: None,
    )


def _request(choices: Choices) -> BindRequest:
    ask = choices.choose
    metadata = {"namespace": "ns", "name": "p", "uid": "R"}
    decoded_request = decode_bind_request({"metadata": metadata, "spec": {"podName": "p", "selectedNode": "n"}})

    def status(_: Any) -> Mapping[str, Any]:
        conditions = []
        rolled_back = ask("RolledBack", ("", "True", "False"))
        if rolled_back:
            conditions.append({"type": "RolledBack", "status": rolled_back})
        reason = ask("failure", REASONS) if rolled_back == "False" else ""
        return {"conditions": conditions, **({"failure": {"reason": reason}} if reason else {})}

    def spec(_: Any) -> str:
        return ask("spec", ("valid", "invalid", "no pod name", "not of its name"))

    return lazy(
        BindRequest,
        key=lambda _: KEY,
        uid=lambda _: "R",
        generation=lambda _: ask("generation", (1, 2)),
        deleting=lambda _: ask("request deleting", (False, True)),
        phase=lambda _: ask("phase", tuple(Phase)),
        has_finalizer=lambda _: ask("finalizer", (False, True)),
        spec=lambda _: decoded_request.spec if spec(_) == "valid" else None,
        errors=lambda _: (),
        pod_key=lambda _: ObjectKey("ns", "p" if spec(_) in ("valid", "invalid") else ""),
        is_misnamed=lambda _: spec(_) == "not of its name",
        pod_uid=lambda _: ask("pod UID asked", ("", "P")),
        created=lambda _: CREATED,
        selected_node=lambda _: "n",
        failed_attempts=lambda _: ask("failed attempts", (0, 1)),
        status=status,
        conditions=lambda self: tuple(self.status["conditions"]),
        raw=lambda _: {"metadata": {}},
    )


def _pod(choices: Choices) -> PodView:
    ask = choices.choose
    return lazy(
        PodView,
        uid=lambda _: ask("pod UID", ("P", "other")),
        created=lambda _: CREATED + ask("pod created after", (timedelta(0), timedelta(minutes=1))),
        version=lambda _: "1",
        prepared_for=lambda _: ask("prepared for", ("R", "other")),
        node=lambda _: ask("pod node", ("", "n", "elsewhere")),
        deleting=lambda _: ask("pod deleting", (False, True)),
        has_ended=lambda _: ask("pod ended", (False, True)),
        gates=lambda _: ask("gates", ((), ("gate",))),
        scheduler=lambda _: ask("scheduler", ("example-scheduler", "other")),
        tolerations=lambda _: ask("tolerations", ((), ({"key": "x", "operator": "Exists"},))),
    )


def _node(choices: Choices) -> NodeView:
    ask = choices.choose
    return lazy(
        NodeView,
        deleting=lambda _: ask("node deleting", (False, True)),
        taints=lambda _: ask("taints", ((), (TAINT,), (TAINT, CORDON))),
    )


def _times(choices: Choices) -> Times:
    ask = choices.choose
    return lazy(
        Times,
        age=lambda _: ask("age", (timedelta(0), POD_GRACE)),
        wait_time=lambda _: ask("wait time", _TIMES),
        watch_time=lambda _: ask("watch time", (timedelta(0), timedelta(hours=1))),
        retry_in=lambda _: ask("retry in", (timedelta(0), timedelta(seconds=9))),
        waited=lambda _: ask("waited", ({}, {GATES: timedelta(seconds=30)}, {"plugin x": timedelta(days=2)})),
        longest=lambda _: ask("longest", (timedelta(0), timedelta(days=1))),
    )


class Violations:
    """What does not hold, with examples."""

    def __init__(self) -> None:
        self.examples: dict[str, list[str]] = defaultdict(list)

    def check(self, path: Path[Decision]) -> None:
        """Check the properties of one path."""
        if isinstance(path.result, Exception):
            self.hold("there is no exception", False, path)
            return
        for kind, properties in _PROPERTIES.items():
            if isinstance(path.result, kind):
                for name, holds in properties(path.values, path.result).items():
                    self.hold(f"{kind.__name__}: {name}", holds, path)

    def hold(self, name: str, condition: bool, path: Path[Decision]) -> None:
        """Record an example unless the condition holds."""
        if not condition and len(self.examples[name]) < 3:
            self.examples[name].append(f"{path.result!r:.120} from {path.values}")


Values = Mapping[str, Any]


def _is_live(v: Values, target: Target) -> bool:
    return bool(v.get(f"live {target.value}", False))


def _is_bound_as_asked(v: Values) -> bool:
    was_changed_since = (v.get("pod node"), v.get("generation"), v.get("prepared for")) == ("elsewhere", 2, "R")
    return v.get("pod UID") == "P" == v.get("pod UID asked") and (v.get("pod node") == "n" or was_changed_since)


def _of_read(v: Values, result: ReadLive) -> dict[str, bool]:
    return {"a live read is not repeated": not _is_live(v, result.target)}


def _of_pause(_: Values, result: RequeueAfter) -> dict[str, bool]:
    return {"it is positive": result.after > timedelta(0)}


def _of_wait(_: Values, result: Wait) -> dict[str, bool]:
    return {"it names an object": bool(result.on), "it has time left": result.left > timedelta(0)}


def _of_attempt(v: Values, _: Attempt) -> dict[str, bool]:
    untolerated = [taint for taint in v["taints"] if taint is CORDON or not v["tolerations"]]
    return {
        "the request is unfinished": v["phase"] is Phase.PENDING and not v["request deleting"],
        "the release is not uninstalled": not v["uninstalling"],
        "the pod is the one asked for": v["pod UID"] == "P" == v["pod UID asked"],
        "the pod is unbound": v["pod node"] == "",
        "the pod lives": not v["pod deleting"] and not v["pod ended"],
        "the pod has no gate and our scheduler": v["gates"] == () and v["scheduler"] == "example-scheduler",
        "the node exists": not v["node deleting"],
        "the pod tolerates the node": not untolerated,
        "one that does not follow the request's event follows a live read of it": (
            not (v["failed attempts"] or v["delayed"]) or _is_live(v, Target.REQUEST)
        ),
        "no failure is announced": v.get("RolledBack") != "False" or v["failure"] in NONE_ANNOUNCED,
        "the pause is over": v["retry in"] <= timedelta(0),
    }


def _of_rollback(v: Values, _: Rollback) -> dict[str, bool]:
    return {
        "the pod is not bound as asked": not _is_bound_as_asked(v),
        "the pod was read live": _is_live(v, Target.POD) or v.get("spec") == "no pod name",
        "the request has the name of its pod": v["spec"] != "not of its name",
    }


def _of_failure(v: Values, result: Fail) -> dict[str, bool]:
    may_undo = v.get("finalizer") or v.get("RolledBack") == "False"
    of_pod = result.status.reason in (Reason.POD_GONE, Reason.BOUND_ELSEWHERE, Reason.WAIT_TIMEOUT)
    of_node = result.status.reason in (Reason.NODE_GONE, Reason.NODE_UNSCHEDULABLE) and v.get("RolledBack") != "False"
    can_be_bound = (
        v.get("pod UID") == "P" and v.get("pod node") == "" and not v.get("pod deleting") and not v.get("pod ended")
    )
    elsewhere = result.status.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    return {
        "the pod is not bound as asked": not _is_bound_as_asked(v),
        "with side effects, the pod was read live": (
            _is_live(v, Target.POD) or not may_undo or v.get("spec") in ("no pod name", "not of its name")
        ),
        "a reason of the pod needs a live pod": _is_live(v, Target.POD) or not of_pod,
        "a reason of the node needs a live node": _is_live(v, Target.NODE) or not of_node,
        "another node is suggested only if another node can bind the pod": can_be_bound or not elsewhere,
    }


def _of_completion(v: Values, _: Complete) -> dict[str, bool]:
    return {"the pod is bound as asked": _is_bound_as_asked(v)}


def _of_forgotten(v: Values, _: Forget) -> dict[str, bool]:
    is_finished = v["request deleting"] or v["phase"] is not Phase.PENDING or v["uninstalling"]
    is_kept = bool(v.get("held")) and v["phase"] is Phase.SUCCEEDED
    return {"no finalizer, or held": not v["finalizer"] or is_kept, "the request is finished": is_finished}


def _of_finalizer(v: Values, _: DropFinalizer) -> dict[str, bool]:
    is_harmless = v["spec"] == "not of its name" or v["phase"] is Phase.SUCCEEDED or _is_bound_as_asked(v)
    return {"nothing is to be undone": is_harmless}


def _of_owner(v: Values, _: SetOwner) -> dict[str, bool]:
    return {"the pod was read live": _is_live(v, Target.POD), "it is no later pod": not v["pod created after"]}


_PROPERTIES: Mapping[type, Callable[[Values, Any], dict[str, bool]]] = {
    ReadLive: _of_read,
    RequeueAfter: _of_pause,
    Wait: _of_wait,
    Attempt: _of_attempt,
    Rollback: _of_rollback,
    Fail: _of_failure,
    Complete: _of_completion,
    Forget: _of_forgotten,
    DropFinalizer: _of_finalizer,
    SetOwner: _of_owner,
}


def decide_by(choices: Choices) -> Decision:
    return decide(observed(choices), SETTINGS)


@pytest.fixture(scope="module")
def every_path() -> list[Path[Decision]]:
    return list(paths(decide_by))


def test_the_paths_are_the_whole_space(every_path: list[Path[Decision]]) -> None:
    assert sum((path.share for path in every_path), Fraction(0)) == 1
    assert {type(path.result) for path in every_path} == set(_PROPERTIES)


def test_every_property_holds_for_every_decision(every_path: list[Path[Decision]]) -> None:
    violations = Violations()
    for path in every_path:
        violations.check(path)
    assert violations.examples == {}


def test_the_same_content_read_live_decides_the_same(every_path: list[Path[Decision]]) -> None:
    """How an object was read matters only for whether it is read again."""
    differences = []
    for path in every_path:
        v = dict(path.values)
        is_missing = not all(v.get(f"{target.value} cached", True) for target in Target)
        if isinstance(path.result, ReadLive | Exception) or is_missing:
            continue
        for target in Target:
            v[f"live {target.value}"] = True
            v.setdefault(f"{target.value} exists", True)
        choices = Choices()
        choices.values.update(v)
        live_result = decide_by(choices)
        if type(live_result) is not type(path.result):
            differences.append(f"cached: {path.result!r:.100}, live: {live_result!r:.100}, {path.values}")
    assert differences[:3] == []
