"""What is reported of a request: its status, its events, and the pod's PodBound condition. Pure.

A status is complete for each way in which a reconcile can end. It starts from the stored one, so that other writers'
fields are kept; the writer sends only the differences. Times have a resolution of one second, as metav1.Time has.

Prepared is claimed only for what an attempt of this controller has prepared: another scheduler, a user, a bind plugin
or a delayed Binding may have bound the pod without one. The pod itself is the evidence: a Binding is sent only when
everything is prepared, and carries the request's UID. Decision 116.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BOUND, PREPARED, ROLLED_BACK, AllocationKind, BindRequest, Phase
from bowline.api.failed_decision import decision_of
from bowline.api.meta import Object, format_time, parse_time
from bowline.api.request_facts import FailureFact, WaitFact
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline_reconciler.decide.actions import MAX_REASON, Event, Fail, Nomination, PodBound, Report, Wait
from bowline_reconciler.decide.snapshot import OF_ATTEMPTS, SET_ASIDE_FOR

# As the schema of metav1.Condition has it.
_CONDITION_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")

# A wait that lasts longer has no deadline.
_FOREVER = timedelta(days=30)
# Each process measures the start of a wait itself; within this tolerance it is the same wait.
_SAME_MOMENT = timedelta(seconds=10)
# A pod with one of these cannot run unless prepared: ConfigMaps and devices, or allocated ResourceClaims.
_NEEDS_PREPARATION = (AllocationKind.FRACTION, AllocationKind.CLAIMS, AllocationKind.EXTENDED_CLAIM)
# No PodBound=False for these: the pod runs, or belongs to another scheduler.
_NO_CONDITION = (Reason.BOUND_ELSEWHERE, Reason.NOT_OURS)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Why a request is unfinished, for its report. ``why`` has no times, so that events of it are repeats of one.

    ``word``: the first of the status. ``lasts``: for how long the call has lasted. ``until``: when it is continued.
    """

    word: str
    why: str
    lasts: timedelta = timedelta()
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Preparation:
    """The Prepared condition (status, reason, message) of a bound pod; ``warning`` for its owner, or empty."""

    condition: tuple[str, str, str]
    warning: str = ""


@dataclass(frozen=True, slots=True)
class BindingContent:
    """The annotations and labels of a Binding: the pod must have them once it is bound, whoever has bound it."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]

    def missing_in(self, pod: Object) -> list[str]:
        """Return which of them the bound pod does not have."""
        metadata = pod["metadata"]
        return [
            f"{kind} {key}"
            for kind, content in (("annotation", self.annotations), ("label", self.labels))
            for key, value in content.items()
            if (metadata.get(f"{kind}s") or {}).get(key) != value
        ]


PREPARED_BY_US = Preparation(("True", "Prepared", "everything the pod needs is in place"))


def unprepared_since(request: BindRequest, now: datetime) -> datetime:
    """Return since when the request's preparation has waited or failed; ``now`` if it begins to."""
    condition = request.condition(PREPARED)
    since = parse_time(condition.get("lastTransitionTime")) if condition.get("status") == "False" else None
    return since or now


def retrying_status(
    request: BindRequest,
    failed_count: int,
    why: str,
    history: str,
    started_at: datetime,
    now: datetime,
    next_attempt: datetime,
) -> dict[str, Any]:
    """Return the status after a failed attempt, with the next one at ``next_attempt``."""
    return _block(request, started_at) | {
        "phase": Phase.PENDING.value,
        "reason": reason_text("Retrying", why, history),
        "failedAttempts": failed_count,
        "lastAttemptTime": format_time(started_at),
        "nextAttemptTime": format_time(_rounded_up(next_attempt)),
        "conditions": conditions(request, {PREPARED: ("False", "Retrying", why)}, now),
    }


def waiting_status(request: BindRequest, wait: Wait, since: datetime, now: datetime) -> dict[str, Any]:
    """Return the status of a request that has waited since ``since``; its reason names the deadline."""
    prepared_condition = request.condition(PREPARED)
    is_reported = prepared_condition.get("reason") == "Waiting"
    reported_since = parse_time(prepared_condition.get("lastTransitionTime")) if is_reported else None
    # In whole seconds, so that the same wait has the same deadline in every process.
    total = timedelta(seconds=round((now - since + wait.left).total_seconds()))
    if reported_since is not None and abs(reported_since - since) <= _SAME_MOMENT:
        since = reported_since
    deadline = since + total if wait.expires and wait.left < _FOREVER else None
    until = f"fails with WaitTimeout at {format_time(deadline)}" if deadline is not None else ""
    updated = conditions(request, {PREPARED: ("False", "Waiting", wait.why)}, now)
    # The start of a wait is a transition, also after a failed attempt: a restart measures the wait from it.
    times = {"lastTransitionTime": format_time(since)}
    return _block(request, since if wait.is_of_attempt else None) | {
        "phase": Phase.PENDING.value,
        "reason": reason_text("Waiting", wait.why, until),
        "wait": WaitFact(wait.cause, wait.on, deadline).as_field(),
        "conditions": [
            {**condition, **times} if condition["type"] == PREPARED else condition for condition in updated
        ],
    }


def waiting_event(wait: Wait) -> Event:
    """Return the event of a wait that is reported: without a time, so that the same wait again is a repeat of it."""
    return Event("Normal", names.EVENT_WAITING, wait.why)


def unfinished_status(request: BindRequest, cause: Unfinished, now: datetime) -> dict[str, Any]:
    """Return the status of a request that is unfinished; no attempt has failed.

    Prepared has the cause, and since when the pod waits; the reason of a wait stays, whose time is counted.
    """
    times = f", since {format_time(now - cause.lasts)}" if cause.lasts else ""
    times += f"; continues at {format_time(cause.until)}" if cause.until is not None else ""
    word = "Waiting" if request.condition(PREPARED).get("reason") == "Waiting" else cause.word
    return _block(request, None) | {
        "phase": Phase.PENDING.value,
        "reason": reason_text(cause.word, cause.why + times),
        "conditions": conditions(request, {PREPARED: ("False", word, cause.why)}, now),
    }


def set_aside_status(request: BindRequest, point: str, why: str, now: datetime) -> dict[str, Any]:
    """Return the status of a request for which a plugin's call, ``point``, ends this process."""
    again = f"it is taken up again after {SET_ASIDE_FOR.total_seconds() / 60:.0f} minutes"
    remedy = f"then delete the request, or {again}" if point in OF_ATTEMPTS else again
    why = f"{why}; repair or disable it; {remedy}"
    updated = conditions(request, {names.CONDITION_SET_ASIDE: ("True", point, why)}, now)
    # All else stays: a terminal failure whose rollback has begun is still one.
    return dict(request.status) | {"conditions": updated}


def released_status(request: BindRequest, why: str, now: datetime) -> dict[str, Any]:
    """Return the status of an unfinished request that was rolled back and that this binder attempts no more."""
    return _block(request, None) | {
        "phase": Phase.PENDING.value,
        "reason": reason_text("Released", why),
        "conditions": conditions(request, {PREPARED: ("False", "Released", why)}, now),
    }


def succeeded_status(
    request: BindRequest, preparation_status: Preparation, started_at: datetime | None, now: datetime
) -> dict[str, Any]:
    """Return the status of a request whose pod is on its node."""
    why = f"pod {request.pod_key.name} is bound to node {request.selected_node}"
    updates = {PREPARED: preparation_status.condition, BOUND: ("True", "Bound", why)}
    block = _block(request, started_at) | {
        "phase": Phase.SUCCEEDED.value,
        "completionTime": format_time(now),
        "nodeName": request.selected_node,
        # A pending rollback is void: the pod runs with what was prepared.
        "conditions": [
            condition for condition in conditions(request, updates, now) if condition["type"] != ROLLED_BACK
        ],
    }
    if started_at is not None:
        block["lastAttemptTime"] = format_time(started_at)
    return {key: value for key, value in block.items() if key not in ("reason", "nextAttemptTime", "suggestion")}


def preparation(request: BindRequest, intact: bool, pod: Object, content: BindingContent | None) -> Preparation:
    """Return what a bound pod shows of its preparation.

    ``intact``: nothing was rolled back since. ``pod``: as read after the bind, whoever has bound it. ``content``:
    that of the last Binding of this process; None if it has sent none.
    """
    missing = content.missing_in(pod) if content is not None else ()
    if missing:
        why = (
            f"pod {request.pod_key.name} is on node {request.selected_node}, but does not have what its Binding "
            f"contains: {', '.join(missing)}; another client or a bind plugin has bound it without, or an admission "
            "webhook or policy for pods/binding has changed it"
        )
        return Preparation(("Unknown", "NotPrepared", why), why)
    intact = intact and not request.is_rollback_incomplete
    if intact and (pod["metadata"].get("annotations") or {}).get(names.PREPARED_FOR) == request.uid:
        return PREPARED_BY_US
    node = request.selected_node
    why = f"pod {request.pod_key.name} is on node {node}, but no attempt of this controller is known to have bound it"
    demands = request.spec.demands if request.spec is not None else frozenset()
    needs = [demand.value for demand in _NEEDS_PREPARATION if demand in demands]
    if not needs:
        return Preparation(("Unknown", "NotPrepared", why))
    why = f"{why}: {', '.join(needs)} was not prepared here; unless another component has prepared it, delete the pod"
    return Preparation(("Unknown", "NotPrepared", why), why)


def success_report(
    request: BindRequest,
    preparation_status: Preparation,
    pod: Object | None,
    started_at: datetime | None,
    now: datetime,
) -> Report:
    """Return what is written when a request completes."""
    bound = f"bound to node {request.selected_node}"
    event = Event("Normal", names.EVENT_BOUND, bound)
    if preparation_status.warning:
        event = Event("Warning", names.EVENT_NOT_PREPARED, preparation_status.warning)
    replaces = pod is not None and _reports_failure(request, pod)
    condition = PodBound("True", "Bound", bound) if replaces else None
    return Report(succeeded_status(request, preparation_status, started_at, now), event, condition)


def failure_report(
    request: BindRequest,
    fail: Fail,
    rolled_back: bool,
    pod: Object | None,
    now: datetime,
    remains: str = "",
) -> Report:
    """Return what is written of a terminal failure. ``rolled_back``, ``remains``: see ``failed_status``."""
    pod_node = ((pod or {}).get("spec") or {}).get("nodeName") or ""
    hint = f" (suggestion: {fail.status.suggestion.value})" if fail.status.suggestion else ""
    name, why = failure_name(fail), _sentence_of(fail)
    event = Event("Warning", names.EVENT_FAILED, f"{name}: {why}{hint}")
    condition = None
    if fail.status.reason not in _NO_CONDITION:
        decision = decision_of(request.raw.get("spec"))
        condition = PodBound(
            "False",
            name,
            why[:MAX_REASON],
            decision,
            has_ended=True,
            denial=fail.status.denial,
            since=unprepared_since(request, now),
            objects=fail.status.objects,
        )
    nomination = _nomination_after(request, fail, pod) if condition is not None else None
    status = failed_status(request, fail, rolled_back, pod_node, now, remains)
    return Report(status, event, condition, nomination)


def _nomination_after(request: BindRequest, fail: Fail, pod: Object | None) -> Nomination:
    """Return the nomination after a failure, as its suggestion: an autoscaler keeps the node that is suggested.

    A pod behind a scheduling gate is nominated nowhere.
    """
    is_gated = bool(((pod or {}).get("spec") or {}).get("schedulingGates"))
    is_same_node = fail.status.suggestion is Suggestion.RETRY_SAME_NODE and not is_gated
    return Nomination(request.selected_node, is_withdrawn=not is_same_node)


def failed_status(
    request: BindRequest, fail: Fail, rolled_back: bool, pod_node: str, now: datetime, remains: str = ""
) -> dict[str, Any]:
    """Return the status of a terminal failure.

    ``rolled_back``: a rollback has completed; False where no side effects can exist. ``remains``: on which objects it
    has undone nothing. failedAttempts is raised to a backoffLimit that is set: existing schedulers read "Failed, and
    fewer attempts than the limit" as still being retried.
    """
    name, why, failure = failure_name(fail), _sentence_of(fail), _failure_field(fail)
    updates = {BOUND: ("False", condition_reason(name, fail.status.reason), why)}
    if rolled_back:
        updates[ROLLED_BACK] = _rolled_back(remains)
    block = _block(request, None) | {
        "phase": Phase.FAILED.value,
        "reason": reason_text(name, why, fail.history),
        "failedAttempts": max(request.failed_attempts, _final_attempts(request, fail)),
        "completionTime": format_time(now),
        "failure": failure,
        "conditions": conditions(request, updates, now),
    }
    block.pop("nextAttemptTime", None)
    if pod_node:
        block["nodeName"] = pod_node
    if fail.status.suggestion is not None:
        block["suggestion"] = fail.status.suggestion.value
    return block


def rollback_incomplete_status(
    request: BindRequest, fail: Fail | None, rollback: Status, now: datetime
) -> dict[str, Any]:
    """Return the status of a request that cannot end because its rollback is incomplete; ``rollback``: its result.

    ``fail`` is the failure that follows the rollback; it is stored, where a process started later finds it
    (``decide.pending_failure``). None for a request that is being deleted.
    """
    updates = {ROLLED_BACK: ("False", "RollbackFailed", rollback.message)}
    if fail is None:
        block = _block(request, None) if request.phase is Phase.PENDING else dict(request.status)
        follows = "the request is released when the rollback is complete"
    else:
        name, why = failure_name(fail), _sentence_of(fail)
        updates[BOUND] = ("False", condition_reason(name, fail.status.reason), why)
        block = _block(request, None) | {"phase": Phase.PENDING.value, "failure": _failure_field(fail)}
        follows = f"when the rollback is complete, the request fails with {name}: {why}"
        if fail.status.suggestion is not None:
            block["suggestion"] = fail.status.suggestion.value
    if request.phase is Phase.PENDING:
        block["reason"] = reason_text("RollbackFailed", f"{rollback.message}; {follows}")
        block.pop("nextAttemptTime", None)
    return block | {"conditions": conditions(request, updates, now)}


def unreleased_status(request: BindRequest, why: str, now: datetime) -> dict[str, Any]:
    """Return the status of a Succeeded request whose pod has ended: why what it held is not returned yet, if so."""
    block = {key: value for key, value in request.status.items() if key != "reason"}
    if why:
        updates = {ROLLED_BACK: ("False", "ReleaseFailed", why)}
        return block | {"reason": reason_text("ReleaseFailed", why), "conditions": conditions(request, updates, now)}
    return block | {"conditions": [entry for entry in request.conditions if entry["type"] != ROLLED_BACK]}


def rolled_back_status(request: BindRequest, remains: str, now: datetime) -> dict[str, Any]:
    """Return the status of a Failed request whose rollback has completed after the failure was reported.

    ``remains``: see ``failed_status``.
    """
    return dict(request.status) | {"conditions": conditions(request, {ROLLED_BACK: _rolled_back(remains)}, now)}


def _rolled_back(remains: str) -> tuple[str, str, str]:
    if not remains:
        return "True", "RolledBack", "all preparations are undone"
    return "Unknown", "NotUndone", f"not undone: {remains}; repair or delete the object"


def conditions(
    request: BindRequest, updates: Mapping[str, tuple[str, str, str]], now: datetime
) -> list[Mapping[str, Any]]:
    """Return the complete list with the updates merged in; a lastTransitionTime changes only with its status.

    ``updates``: condition type to (status, reason, message). A request of which something is reported is not set
    aside any more.
    """
    existing = {condition["type"]: condition for condition in request.conditions}
    existing.pop(names.CONDITION_SET_ASIDE, None)
    updated: dict[Any, Mapping[str, Any]] = dict(existing)
    for kind, (status, reason, message) in updates.items():
        before = existing.get(kind, {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        updated[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:MAX_REASON],
            "lastTransitionTime": since or format_time(now),
            "observedGeneration": request.generation,
        }
    return list(updated.values())


def condition_reason(name: str, reason: Reason) -> str:
    """Return the reason as a condition may have it; a plugin's own is ``plugin:Word``."""
    text = name.replace("/", ":")
    return text if _CONDITION_REASON.fullmatch(text) else reason.value


def reason_text(word: str, message: str, history: str = "") -> str:
    """Return ``Word: message; history``, cut to the field's limit."""
    text = f"{word}: {message}{f'; {history}' if history else ''}"
    return (
        text if len(text.encode()) <= MAX_REASON else text.encode()[: MAX_REASON - 3].decode(errors="ignore") + "..."
    )


def _block(request: BindRequest, started_at: datetime | None) -> dict[str, Any]:
    """Return the stored status, with the fields that every write refreshes. ``started_at``: of an attempt."""
    block = {key: value for key, value in request.status.items() if key not in ("wait", "failure")}
    block["observedGeneration"] = request.generation
    if started_at is not None:
        block.setdefault("startTime", format_time(started_at))
    return block


def sentence(message: str, plugin: str) -> str:
    """Return a cause as it is reported everywhere: the cause first, whose it is last."""
    return f"{message} [{plugin}]" if plugin else message


def failure_name(fail: Fail) -> str:
    """Return the reason of a failure as it is reported."""
    return _own_reason(fail) or fail.status.reason.value


def _own_reason(fail: Fail) -> str:
    """Return the plugin's own reason, as ``plugin/Word``; empty if it has none."""
    return f"{fail.status.plugin}/{fail.status.word}" if fail.status.word else ""


def _sentence_of(fail: Fail) -> str:
    return sentence(fail.status.message, fail.status.plugin)


def _failure_field(fail: Fail) -> dict[str, Any]:
    return FailureFact(
        fail.status.reason.value, fail.status.plugin, _own_reason(fail), fail.status.objects
    ).as_field()


def _reports_failure(request: BindRequest, pod: Object) -> bool:
    """Return whether the pod's PodBound condition reports an earlier failure, or may soon."""
    statuses = [
        condition.get("status")
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition.get("type") == names.CONDITION_POD_BOUND
    ]
    # The cached pod may still lack the condition of an earlier attempt.
    has_report = bool(statuses) or request.failed_attempts > 0
    return has_report and "True" not in statuses


def _final_attempts(request: BindRequest, fail: Fail) -> int:
    attempts = request.failed_attempts + (1 if fail.status.reason is Reason.BACKOFF_LIMIT_EXCEEDED else 0)
    own_limit = request.spec.backoff_limit if request.spec else None
    return attempts if own_limit is None else max(attempts, own_limit)


def _rounded_up(moment: datetime) -> datetime:
    # metav1.Time has a resolution of one second; rounding down would make a restart attempt too early.
    return moment if moment.microsecond == 0 else moment.replace(microsecond=0) + timedelta(seconds=1)
