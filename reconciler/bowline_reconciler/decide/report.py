"""What is reported of a request: its status, its events, and the pod's PodBound condition. Pure.

A status is complete for each way in which a reconcile can end. It starts from the stored one, so that other writers'
fields are kept; the writer sends only the differences. Times have a resolution of one second, as metav1.Time has.

Prepared is claimed only for what an attempt of this controller has prepared: another scheduler, a user, a bind plugin
or a delayed Binding may have bound the pod without one. The pod itself is the evidence: a Binding is sent only when
everything is prepared, and carries the request's UID. Decision 116.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BOUND, PREPARED, ROLLED_BACK, AllocationKind, BindRequest, Phase
from bowline.api.failed_decision import condition_of, decision_of
from bowline.api.meta import Object, format_time, parse_time
from bowline.api.request_facts import FailureFact, WaitFact
from bowline.framework.interface.status import Failure, Retriable, Status
from bowline.framework.reason import Reason, Suggestion
from bowline_reconciler.decide.actions import MAX_REASON, Event, Fail, Nomination, PodBound, Report, Wait
from bowline_reconciler.decide.snapshot import OF_ATTEMPTS, SET_ASIDE_FOR

# The annotations and labels of a Binding, as a pod's metadata has them.
BindingContent = Mapping[str, Mapping[str, str]]
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


PREPARED_BY_US = Preparation(("True", "Prepared", "everything the pod needs is in place"))


def retry_report(
    request: BindRequest, status: Retriable, history: str, started_at: datetime, now: datetime, pause: timedelta
) -> Report:
    """Return what is written of a failed attempt that another one follows after ``pause``."""
    why = sentence(status.message, status.plugin)
    block = _pending(request, "Retrying", why, now, history, started_at) | {
        "failedAttempts": request.failed_attempts + 1,
        "lastAttemptTime": format_time(started_at),
        "nextAttemptTime": format_time(_rounded_up(now + pause)),
    }
    event = Event("Warning", names.EVENT_RETRY, why)
    return Report(block, event, _unbound(request, status, names.EVENT_RETRY, now), Nomination(request.selected_node))


def waiting_status(request: BindRequest, wait: Wait, since: datetime, now: datetime) -> dict[str, Any]:
    """Return the status of a request that has waited since ``since``; its reason names the deadline."""
    prepared_condition = request.condition(PREPARED)
    is_reported = prepared_condition.get("reason") == "Waiting"
    reported_since = parse_time(prepared_condition.get("lastTransitionTime")) if is_reported else None
    # In whole seconds, so that the same wait has the same deadline in every process.
    total = timedelta(seconds=round((now - since + wait.left).total_seconds()))
    if reported_since is not None and abs(reported_since - since) <= _SAME_MOMENT:
        since = reported_since
    deadline = since + total if wait.left < _FOREVER else None
    until = f"fails with WaitTimeout at {format_time(deadline)}" if deadline is not None else ""
    block = _pending(request, "Waiting", wait.why, now, until, since if wait.is_of_attempt else None)
    # The start of a wait is a transition, also after a failed attempt: a restart measures the wait from it.
    times = {"lastTransitionTime": format_time(since)}
    return block | {
        "wait": WaitFact(wait.cause, wait.on, deadline).as_field(),
        "conditions": [{**entry, **times} if entry["type"] == PREPARED else entry for entry in block["conditions"]],
    }


def unfinished_status(request: BindRequest, cause: Unfinished, now: datetime) -> dict[str, Any]:
    """Return the status of a request that is unfinished; no attempt has failed.

    Prepared has the cause, and since when the pod waits; the reason of a wait stays, whose time is counted.
    """
    times = f", since {format_time(now - cause.lasts)}" if cause.lasts else ""
    times += f"; continues at {format_time(cause.until)}" if cause.until is not None else ""
    word = "Waiting" if request.condition(PREPARED).get("reason") == "Waiting" else cause.word
    return _pending(request, word, cause.why, now) | {"reason": reason_text(cause.word, cause.why + times)}


def set_aside_status(request: BindRequest, point: str, why: str, now: datetime) -> dict[str, Any]:
    """Return the status of a request for which a plugin's call, ``point``, ends this process."""
    again = f"it is taken up again after {SET_ASIDE_FOR.total_seconds() / 60:.0f} minutes"
    remedy = f"then delete the request, or {again}" if point in OF_ATTEMPTS else again
    why = f"{why}; repair or disable it; {remedy}"
    updated = conditions(request, {names.CONDITION_SET_ASIDE: ("True", point, why)}, now)
    # All else stays: a terminal failure whose rollback has begun is still one.
    return dict(request.status) | {"conditions": updated}


def given_up_status(request: BindRequest, why: str, now: datetime) -> dict[str, Any]:
    """Return the status of an unfinished request that was rolled back and that this binder attempts no more."""
    return _pending(request, "RolledBack", why, now)


def preparation(request: BindRequest, intact: bool, pod: Object, content: BindingContent) -> Preparation:
    """Return what a bound pod shows of its preparation.

    ``intact``: nothing was rolled back since. ``pod``: as read after the bind, whoever has bound it. ``content``:
    that of the last Binding of this process; empty if it has sent none.
    """
    metadata, node = pod["metadata"], _node_of(pod, request)
    entries = [(kind, key, value) for kind, by_key in content.items() for key, value in by_key.items()]
    missing = [f"{kind[:-1]} {key}" for kind, key, value in entries if (metadata.get(kind) or {}).get(key) != value]
    if missing:
        why = (
            f"pod {request.pod_key.name} is on node {node}, but does not have what its Binding "
            f"contains: {', '.join(missing)}; another client or a bind plugin has bound it without, or an admission "
            "webhook or policy for pods/binding has changed it"
        )
        return Preparation(("Unknown", "NotPrepared", why), why)
    intact = intact and not request.is_rollback_incomplete
    if intact and (metadata.get("annotations") or {}).get(names.PREPARED_FOR) == request.uid:
        return PREPARED_BY_US
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
    """Return what is written when a request completes: its pod is on its node. ``started_at``: of the attempt."""
    node = _node_of(pod, request)
    bound = f"bound to node {node}"
    why = f"pod {request.pod_key.name} is {bound}"
    updates = {PREPARED: preparation_status.condition, BOUND: ("True", "Bound", why)}
    block = _block(request, started_at) | {
        "phase": Phase.SUCCEEDED.value,
        "completionTime": format_time(now),
        "nodeName": node,
        # A pending rollback is void: the pod runs with what was prepared.
        "conditions": [entry for entry in conditions(request, updates, now) if entry["type"] != ROLLED_BACK],
    }
    if started_at is not None:
        block["lastAttemptTime"] = format_time(started_at)
    block = {key: value for key, value in block.items() if key not in ("reason", "nextAttemptTime", "suggestion")}
    event = Event("Normal", names.EVENT_BOUND, bound)
    if preparation_status.warning:
        event = Event("Warning", names.EVENT_NOT_PREPARED, preparation_status.warning)
    replaces = pod is not None and _reports_failure(request, pod)
    return Report(block, event, PodBound("True", "Bound", bound) if replaces else None)


def _node_of(pod: Object | None, request: BindRequest) -> str:
    """Return the node of a bound pod: not the selected one if the decision was changed after the bind."""
    return ((pod or {}).get("spec") or {}).get("nodeName") or request.selected_node


def failure_report(
    request: BindRequest,
    fail: Fail,
    rolled_back: bool,
    pod: Object | None,
    now: datetime,
    remains: str = "",
) -> Report:
    """Return what is written of a terminal failure.

    ``rolled_back``: a rollback has completed; False where no side effects can exist. ``remains``: on which objects it
    has undone nothing. failedAttempts is raised to a backoffLimit that is set: existing schedulers read "Failed, and
    fewer attempts than the limit" as still being retried.
    """
    status, name = fail.status, failure_name(fail)
    why = sentence(status.message, status.plugin)
    updates = {ROLLED_BACK: _rolled_back(remains)} if rolled_back else {}
    block = _failing(request, fail, Phase.FAILED, updates, now) | {
        "reason": reason_text(name, why, fail.history),
        "failedAttempts": max(request.failed_attempts, _final_attempts(request, fail)),
        "completionTime": format_time(now),
    }
    if pod_node := ((pod or {}).get("spec") or {}).get("nodeName"):
        block["nodeName"] = pod_node
    hint = f" (suggestion: {status.suggestion.value})" if status.suggestion else ""
    event = Event("Warning", names.EVENT_FAILED, f"{name}: {why}{hint}")
    if status.reason in _NO_CONDITION:
        return Report(block, event)
    condition = replace(_unbound(request, status, name, now), has_ended=True, denial=status.denial)
    return Report(block, event, condition, _nomination_after(request, fail, pod))


def _failing(
    request: BindRequest, fail: Fail, phase: Phase, updates: Mapping[str, tuple[str, str, str]], now: datetime
) -> dict[str, Any]:
    """Return the part of a status that has a terminal failure. ``updates``: of other conditions."""
    status, name = fail.status, failure_name(fail)
    reason = name.replace("/", ":")  # as a condition may have it
    reason = reason if _CONDITION_REASON.fullmatch(reason) else status.reason.value
    bound = ("False", reason, sentence(status.message, status.plugin))
    fact = FailureFact(status.reason.value, status.plugin, name if status.word else "", status.objects)
    block = _block(request, None) | {
        "phase": phase.value,
        "failure": fact.as_field(),
        "conditions": conditions(request, {BOUND: bound, **updates}, now),
    }
    block.pop("nextAttemptTime", None)
    if status.suggestion is not None:
        block["suggestion"] = status.suggestion.value
    return block


def _unbound(request: BindRequest, status: Failure, reason: str, now: datetime) -> PodBound:
    """Return the pod's condition after a failure, since when the request's preparation has waited or failed."""
    why = sentence(status.message, status.plugin)[:MAX_REASON]
    prepared = request.condition(PREPARED)
    since = parse_time(prepared.get("lastTransitionTime")) if prepared.get("status") == "False" else None
    decision = decision_of(request.raw.get("spec"))
    return PodBound("False", reason, why, decision, since=since or now, objects=status.objects)


def _nomination_after(request: BindRequest, fail: Fail, pod: Object | None) -> Nomination:
    """Return the nomination after a failure, as its suggestion: an autoscaler keeps the node that is suggested.

    A pod behind a scheduling gate is nominated nowhere.
    """
    is_gated = bool(((pod or {}).get("spec") or {}).get("schedulingGates"))
    is_same_node = fail.status.suggestion is Suggestion.RETRY_SAME_NODE and not is_gated
    return Nomination(request.selected_node, is_withdrawn=not is_same_node)


def rollback_incomplete_status(
    request: BindRequest, fail: Fail | None, rollback: Status, now: datetime
) -> dict[str, Any]:
    """Return the status of a request that cannot end because its rollback is incomplete; ``rollback``: its result.

    ``fail`` is the failure that follows the rollback; it is stored, where a process started later finds it
    (``decide.pending_failure``). None for a request that is being deleted.
    """
    updates = {ROLLED_BACK: ("False", "RollbackFailed", rollback.message)}
    if fail is not None:
        block = _failing(request, fail, Phase.PENDING, updates, now)
        why = sentence(fail.status.message, fail.status.plugin)
        follows = f"when the rollback is complete, the request fails with {failure_name(fail)}: {why}"
    else:
        block = _block(request, None) if request.phase is Phase.PENDING else dict(request.status)
        block["conditions"] = conditions(request, updates, now)
        follows = "the request is given up when the rollback is complete"
    if request.phase is Phase.PENDING:
        block["reason"] = reason_text("RollbackFailed", f"{rollback.message}; {follows}")
        block.pop("nextAttemptTime", None)
    return block


def unreleased_status(request: BindRequest, why: str, now: datetime) -> dict[str, Any]:
    """Return the status of a Succeeded request whose pod has ended: why what it held is not returned yet, if so."""
    block = {key: value for key, value in request.status.items() if key != "reason"}
    if why:
        updates = {ROLLED_BACK: ("False", "ReleaseFailed", why)}
        return block | {"reason": reason_text("ReleaseFailed", why), "conditions": conditions(request, updates, now)}
    return block | {"conditions": [entry for entry in request.conditions if entry["type"] != ROLLED_BACK]}


def rolled_back_status(request: BindRequest, remains: str, now: datetime) -> dict[str, Any]:
    """Return the status of a Failed request whose rollback has completed after the failure was reported.

    ``remains``: see ``failure_report``.
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


def reason_text(word: str, message: str, history: str = "") -> str:
    """Return ``Word: message; history``, cut to the field's limit."""
    text = f"{word}: {message}{f'; {history}' if history else ''}"
    return (
        text if len(text.encode()) <= MAX_REASON else text.encode()[: MAX_REASON - 3].decode(errors="ignore") + "..."
    )


def _pending(
    request: BindRequest, word: str, why: str, now: datetime, more: str = "", started_at: datetime | None = None
) -> dict[str, Any]:
    """Return the status of a request that is not prepared: ``word`` is why, in the condition and in the reason."""
    return _block(request, started_at) | {
        "phase": Phase.PENDING.value,
        "reason": reason_text(word, why, more),
        "conditions": conditions(request, {PREPARED: ("False", word, why)}, now),
    }


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
    """Return the reason of a failure as it is reported; a plugin's own as ``plugin/Word``."""
    return f"{fail.status.plugin}/{fail.status.word}" if fail.status.word else fail.status.reason.value


def _reports_failure(request: BindRequest, pod: Object) -> bool:
    """Return whether the pod's PodBound condition reports an earlier failure, or may soon."""
    status = condition_of(pod, names.CONDITION_POD_BOUND).get("status")
    # The cached pod may still lack the condition of an earlier attempt.
    return status != "True" and (status is not None or request.failed_attempts > 0)


def _final_attempts(request: BindRequest, fail: Fail) -> int:
    attempts = request.failed_attempts + (1 if fail.status.reason is Reason.BACKOFF_LIMIT_EXCEEDED else 0)
    own_limit = request.spec.backoff_limit if request.spec else None
    return attempts if own_limit is None else max(attempts, own_limit)


def _rounded_up(moment: datetime) -> datetime:
    # metav1.Time has a resolution of one second; rounding down would make a restart attempt too early.
    return moment if moment.microsecond == 0 else moment.replace(microsecond=0) + timedelta(seconds=1)
