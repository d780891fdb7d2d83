"""Why a pod is not bound, from the objects in the cluster: what happens, since when, until when, what helps. Pure.

The rows are those of docs/stuck-pods.md, in the order in which a pod passes its scheduler, the reconciler and the
kubelet. Only fields are read (``bowline.api.request_facts``, ``bowline.api.failed_decision``); sentences are quoted.
Nothing is guessed: what could not be read is said (``Facts.unreadable``), and nothing follows from it.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from bowline.api import names
from bowline.api.failed_decision import condition_of
from bowline.api.meta import Object, format_time, is_deleting, key_of, parse_time, status_of
from bowline.api.pod_volumes import pod_volumes
from bowline.api.request_facts import FailureFact, WaitFact, failure_of, reported_status, wait_of
from bowline.framework.reason import Reason, Suggestion
from bowline_cli.facts import (
    NOT_READ,
    Explanation,
    Facts,
    PodRecord,
    Section,
    age,
    container_problems,
    creation_time,
    current_request,
    delete_request,
    describe_pod,
    helping_commands,
    last_event,
    last_warning,
    node_of,
    object_states,
    pod_state,
    pod_uid,
    ready_replicas,
    record_of,
    scheduler_of,
)
from bowline_cli.reader import Unread, acquired_at
from bowline_cli.undecided import (
    IDLE,
    driver_state,
    explain_record,
    explain_undecided,
    gang_cause,
    gang_state,
    last_failure,
    scheduler_state,
)

_SHARED: Final = (names.EVENT_UNRESERVED, names.EVENT_RESERVED)
# Another program may have written the phase.
_NO_REASON: Final = "the bind has failed without a reason"


def explain(facts: Facts) -> Explanation | None:
    """Return the explanation; None if neither the pod nor a request for it exists."""
    request = current_request(facts)
    if facts.pod is None:
        return None if request is None else _orphan(facts, request)
    if is_deleting(facts.pod):
        return _deleting_pod(facts, facts.pod)
    if (facts.pod.get("spec") or {}).get("nodeName"):
        return replace(_bound(facts, facts.pod), section=Section.BOUND)
    if status_of(facts.pod).get("phase") in ("Succeeded", "Failed"):
        cause = f"the pod has ended without a node: {pod_state(facts.pod)}"
        return Explanation(cause, _end_time(facts.pod), _replacement(facts.pod), is_stuck=False)
    if request is None:
        return _earlier(facts, facts.request) if facts.request is not None else explain_undecided(facts, facts.pod)
    return _explain_decision(facts, facts.pod, request)


# --- after the decision ---


def _explain_decision(facts: Facts, pod: Object, request: Object) -> Explanation:
    if is_deleting(request):
        return _deleting(facts, request)
    status = reported_status(request)
    if status.get("phase") == "Failed":
        return _explain_failure(facts, pod, request)
    if status.get("phase") == "Succeeded":
        return _explain_success(facts, pod, request)
    lack = _lack_of_reconciler(facts, request)
    if lack is not None:
        return lack
    record = record_of(pod)
    if not status.get("phase") and record is not None and record.decision.has_ended:
        node = (request.get("spec") or {}).get("selectedNode")
        return explain_record(facts, pod, record, f"the new decision, for node {node}, is reported on")
    return _explain_progress(facts, request, record)


def _explain_success(facts: Facts, pod: Object, request: Object) -> Explanation:
    """Explain a request that says that the pod, which is on no node, is bound."""
    if pod_uid(request) != pod["metadata"].get("uid"):
        return _earlier(facts, request)
    node = (request.get("spec") or {}).get("selectedNode")
    completed = parse_time(status_of(request).get("completionTime"))
    if completed is not None and facts.now - completed < IDLE:
        # The pod was read before the request was.
        return Explanation(f"the pod is bound to node {node} since a moment ago", is_stuck=False)
    cause = f"BindRequest {key_of(request)} is Succeeded, and the pod is on no node: another program has written that"
    return Explanation(cause, completed or creation_time(request), commands=(delete_request(request),))


def _explain_progress(facts: Facts, request: Object, record: PodRecord | None) -> Explanation:
    """Explain a request that is processed, by what it reports."""
    status, created = reported_status(request), creation_time(request)
    preparation, rollback = (condition_of({"status": status}, kind) for kind in ("Prepared", "RolledBack"))
    cause = str(preparation.get("message") or _message(status))
    since = parse_time(preparation.get("lastTransitionTime")) or parse_time(status.get("startTime")) or created
    describe = (describe_pod(facts),)
    if rollback.get("status") == "False":
        since = parse_time(rollback.get("lastTransitionTime")) or created
        cause = f"what was prepared cannot be undone: {rollback.get('message')}"
        details: tuple[str, ...] = (f"reported: {status.get('reason')}",)
        return Explanation(cause, since, "the rollback is complete", describe, details, section=Section.DELETION)
    wait, next_attempt = wait_of(status), parse_time(status.get("nextAttemptTime"))
    if wait is not None:
        since = _earliest(since, record, cause, Reason.WAIT_TIMEOUT)
        details = (*object_states(facts, wait.objects, cause), *last_failure(record))
        details += gang_state(facts)
        commands = helping_commands(facts, wait.objects)
        until, cause = _end_of_wait(wait, facts.now), gang_cause(facts, wait.objects, cause)
        return Explanation(cause, since, until, commands, details, section=Section.WAITS)
    if preparation.get("reason") == "RolledBack":
        return Explanation(cause, since, "a reconciler that is not being uninstalled leads", describe)
    if status.get("phase"):
        until = "the next attempt"
        if next_attempt is not None:
            until += f", at {format_time(next_attempt)}" if next_attempt > facts.now else ", which is due"
        since = _earliest(since, record, cause, names.EVENT_RETRY)
        return Explanation(cause, since, until, describe, last_failure(record), section=Section.BACKOFF)
    uid = request["metadata"].get("uid")
    own_events = [event for event in facts.events if (event.get("related") or {}).get("uid") == uid]
    retries = [event for event in own_events if event.get("reason") == names.EVENT_RETRY]
    if retries:  # the status could not be written
        cause = str(retries[-1].get("message"))
        return Explanation(cause, created, "the next attempt", describe, section=Section.BACKOFF)
    cause = "the reconciler has not reported on the BindRequest yet; it reports what prevents progress after 5 s"
    is_new = created is not None and facts.now - created < IDLE
    commands = () if is_new else describe
    return Explanation(
        cause, created, "the reconciler reports", commands, is_stuck=not is_new, section=Section.UNREAD
    )


def _message(status: Object) -> str:
    """Return the message that a status without a condition has in its reason, after the word of the state."""
    reason = str(status.get("reason") or "")
    return reason.partition(": ")[2] or reason


def _earliest(since: datetime | None, record: PodRecord | None, cause: str, reason: str) -> datetime | None:
    """Return since when the pod has the cause: its earlier decisions may have failed for it."""
    if record is None or (cause != record.cause and reason != record.decision.reason):
        return since
    return min(since or record.since, record.since)


def _end_of_wait(wait: WaitFact, now: datetime) -> str:
    if wait.deadline is None:
        return "one of the objects changes; there is no deadline"
    deadline = format_time(wait.deadline)
    if wait.deadline <= now:
        return f"it fails with WaitTimeout: its deadline was {deadline}"
    return f"one of the objects changes; at the latest it fails with WaitTimeout at {deadline}"


def _explain_failure(facts: Facts, pod: Object, request: Object) -> Explanation:
    status, scheduler = reported_status(request), scheduler_of(pod)
    suggestion = next((each for each in Suggestion if each.value == status.get("suggestion")), None)
    end, node = parse_time(status.get("completionTime")), (request.get("spec") or {}).get("selectedNode")
    until = f"the cause is corrected; then scheduler {scheduler} decides again, or the request is deleted"
    if suggestion is not None:
        until = suggestion.next_step.format(scheduler=f"scheduler {scheduler}")
        if suggestion is Suggestion.DELETE_POD:
            until = "; ".join(filter(None, (until, _replacement(pod))))
        elif end is not None and facts.now - end > IDLE:
            until += f"; it has not for {age(facts.now - end)}: is it running?"
    failure = failure_of(status) or FailureFact("")
    reason = failure.plugin_reason or failure.reason
    cause = str(condition_of({"status": status}, "Bound").get("message") or _message(status) or _NO_REASON)
    start = parse_time(condition_of({"status": status}, "Prepared").get("lastTransitionTime")) or end
    since = _earliest(start, record_of(pod), cause, reason)
    commands = helping_commands(facts, failure.objects, failure.reason, str(node or ""))
    afterwards: tuple[str, ...] = ()
    delete_pod = f"kubectl -n {facts.key.namespace} delete pod {facts.key.name}"
    if suggestion is Suggestion.DELETE_POD:
        commands = (*commands, delete_pod)
    elif suggestion is None:
        afterwards = (delete_request(request), delete_pod)
    at = format_time(end) if end is not None else "an unknown time"
    more = str(status.get("reason") or "").partition(cause)[2]  # what preceded the failure
    summary = f"the bind has failed with {reason or 'no reason'} at {at}, on node {node}{more}"
    details = (*object_states(facts, failure.objects, cause), summary, *scheduler_state(facts, pod))
    details += driver_state(facts, pod)
    cause = gang_cause(facts, failure.objects, cause)
    return Explanation(cause, since, until, commands, details, afterwards=afterwards, section=Section.FAILURES)


def _earlier(facts: Facts, request: Object) -> Explanation:
    """Explain a request of an earlier pod of that name: its name is taken until it is deleted."""
    if is_deleting(request):
        explanation = _deleting(facts, request)
        return replace(explanation, cause=f"no decision is possible: of an earlier pod, {explanation.cause}")
    cause = f"no decision is possible while BindRequest {key_of(request)} exists, which is of an earlier pod"
    return Explanation(cause, creation_time(facts.pod or request), commands=(delete_request(request),))


def _orphan(facts: Facts, request: Object) -> Explanation:
    if is_deleting(request):
        return _deleting(facts, request)
    cause = (
        f"the pod does not exist; its BindRequest {key_of(request)} remains until the garbage collector or its "
        "scheduler deletes it"
    )
    return Explanation(cause, creation_time(request), commands=(delete_request(request),))


def _deleting_pod(facts: Facts, pod: Object) -> Explanation:
    metadata, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName")
    # The API server adds the grace period to the time of the deletion.
    end, grace_s = parse_time(metadata.get("deletionTimestamp")), metadata.get("deletionGracePeriodSeconds") or 0
    since = None if end is None else end - timedelta(seconds=grace_s)
    finalizers, conditions = metadata.get("finalizers") or [], []
    cause = "the pod is being deleted"
    disruption = condition_of(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        cause += f" ({disruption.get('reason')}: {disruption.get('message')})"
    if node and metadata.get("deletionGracePeriodSeconds") != 0:  # 0: of its kubelet, once it has ended, or by force
        ends = "ended" if end is not None and end <= facts.now else "ends"
        cause += f"; its grace period on node {node} {ends} at {metadata['deletionTimestamp']}"
        conditions.append("its kubelet ends it")
    cause += f"; finalizers: {', '.join(finalizers) or 'none'}"
    if finalizers:
        conditions.append("their owners remove the finalizers")
    is_stuck = bool(conditions) and (end is None or end <= facts.now)
    return Explanation(cause, since, ", and ".join(conditions), (describe_pod(facts),), is_stuck=is_stuck)


def _deleting(facts: Facts, request: Object) -> Explanation:
    finalizers = request["metadata"].get("finalizers") or []
    since = parse_time(request["metadata"].get("deletionTimestamp"))
    if names.FINALIZER not in finalizers:
        cause = f"its BindRequest is being deleted; finalizers of others: {', '.join(finalizers) or 'none'}"
        return Explanation(cause, since, "their owners remove them", section=Section.DELETION)
    cause = f"its BindRequest is being deleted; finalizer {names.FINALIZER} keeps it until it is rolled back"
    message = condition_of({"status": reported_status(request)}, "RolledBack").get("message")
    details = (f"not undone: {message}",) if message else ()
    lack = _lack_of_reconciler(facts, request)
    if lack is None:
        describe = f"kubectl -n {facts.key.namespace} describe bindrequest {request['metadata']['name']}"
        return Explanation(cause, since, "the rollback is complete", (describe,), details, section=Section.DELETION)
    return replace(lack, cause=f"{cause}; {lack.cause}", since=since, details=(*details, *lack.details))


def _lack_of_reconciler(facts: Facts, request: Object) -> Explanation | None:
    """Explain that no reconciler leads; None if one does, or if that could not be read."""
    if isinstance(facts.leases, Unread) or any(acquired_at(lease, facts.now) for lease in facts.leases):
        return None
    renewals = [
        f"{key_of(lease)}, last renewed {(lease.get('spec') or {}).get('renewTime') or 'never'}"
        for lease in facts.leases
    ]
    cause = f"no reconciler leads: no Lease of a reconciler is held ({'; '.join(renewals) or 'none exists'})"
    commands = (
        f"kubectl -n {facts.system} get leases,deployments,pods",
        f"kubectl -n {facts.system} logs --selector app.kubernetes.io/component=reconciler --tail 20",
    )
    replicas = ready_replicas(facts, "reconciler")
    ends = [parse_time((lease.get("spec") or {}).get("renewTime")) for lease in facts.leases]
    since = max(filter(None, (creation_time(request), *ends)), default=None)
    return Explanation(cause, since, "a reconciler leads", commands, replicas, section=Section.UNREAD)


# --- after the bind ---


def _replacement(pod: Object) -> str:
    """Return what follows the end of a pod; empty for one without a controller, and for one that has Succeeded."""
    is_controlled = any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences") or ())
    has_succeeded = status_of(pod).get("phase") == "Succeeded"
    return "its controller creates another one" if is_controlled and not has_succeeded else ""


def _end_time(pod: Object) -> datetime | None:
    """Return when a pod has ended, as far as its status says: when it was disrupted, was not ready any more, or its
    last container ended.
    """
    status, conditions = status_of(pod), (("DisruptionTarget", "True"), ("Ready", "False"))
    texts = [
        condition.get("lastTransitionTime")
        for kind, value in conditions
        if (condition := condition_of(pod, kind)).get("status") == value
    ]
    ends = [((each.get("state") or {}).get("terminated") or {}) for each in status.get("containerStatuses") or ()]
    texts += [end.get("finishedAt") for end in ends]
    return max(filter(None, map(parse_time, texts)), default=None)


def _bound(facts: Facts, pod: Object) -> Explanation:
    node, state, phase = pod["spec"]["nodeName"], pod_state(pod, with_node=False), status_of(pod).get("phase")
    commands = (describe_pod(facts),)
    since = parse_time(condition_of(pod, "PodScheduled").get("lastTransitionTime")) or creation_time(pod)
    if phase == "Failed":
        cause = f"the pod has failed on node {node}: {state}"
        return Explanation(cause, _end_time(pod), _replacement(pod), commands, last_event(facts), is_stuck=False)
    lack = _lack_of_node(facts.objects.get(node_of(pod), NOT_READ), f"{node}: {state}")
    if lack is not None and phase != "Succeeded":
        return replace(lack, is_stuck=phase == "Pending")  # what runs there may still do so
    is_ready = condition_of(pod, "Ready").get("status") == "True"
    unready = None if is_ready else parse_time(condition_of(pod, "Ready").get("lastTransitionTime"))
    # Unknown: the kubelet has not reported the pod's state, and the pod may run.
    if phase in ("Succeeded", "Unknown") or (phase == "Running" and (is_ready or not container_problems(pod))):
        shared = [event for event in facts.events if event.get("reason") in _SHARED]
        is_lost = bool(shared) and shared[-1].get("reason") == names.EVENT_UNRESERVED
        details = (str(shared[-1].get("message")),) if is_lost else ()
        cause = f"the pod is bound to node {node}: {state}"
        if phase == "Running" and condition_of(pod, "Ready").get("status") == "False":
            # A probe fails, or the node does not answer any more.
            return Explanation(
                f"{cause}, not ready", unready, "", commands, details or last_event(facts), is_stuck=False
            )
        return Explanation(cause, details=details, is_stuck=False)
    if phase == "Running":
        cause = f"the pod runs on node {node}, and a container does not: {state}"
        return Explanation(cause, unready or since, "the container starts", commands, last_event(facts))
    claims = [volume.ref for volume in pod_volumes(pod)]
    unbound_claims = [ref for ref in claims if _is_unbound(facts.objects.get(ref, NOT_READ))]
    if unbound_claims:
        lacks = [f"{ref} {'is not bound' if facts.objects[ref] else 'does not exist'}" for ref in unbound_claims]
        if facts.info is not None and not facts.info.binds_volumes:
            value = "config.plugins.volume_binding.enabled: true"
            lacks.append(
                f"plugin volume_binding is off, so no volumes are bound; the chart's value {value} switches it on"
            )
        cause = f"the pod is bound to node {node} and cannot start: {'; '.join(lacks)}"
        helping = helping_commands(facts, unbound_claims)
        return Explanation(cause, since, "its volumes are bound", helping, last_event(facts))
    cause = f"the pod is bound to node {node}; its kubelet has not started it yet: {state}"
    if not container_problems(pod) and (warning := last_warning(facts)):
        return Explanation(f"{cause}, {warning}", since, "the kubelet starts it", commands)
    return Explanation(cause, since, "the kubelet starts it", commands, last_event(facts))


def _lack_of_node(node: Object | Unread | None, what: str) -> Explanation | None:
    """Explain that the node of a bound pod is gone, or does not answer; None if it is ready, or not known."""
    if isinstance(node, Unread):
        return None
    if node is None:
        return Explanation(f"the node of the pod does not exist any more: {what}", None, "the pod is deleted")
    ready = condition_of(node, "Ready")
    if ready.get("status") in (None, "True"):
        return None
    cause = f"the node of the pod is not ready: {what}; {ready.get('message') or ready.get('reason')}"
    commands = (f"kubectl describe node {node['metadata']['name']}",)
    return Explanation(cause, parse_time(ready.get("lastTransitionTime")), "the node is ready again", commands)


def _is_unbound(claim: Object | Unread | None) -> bool:
    return not isinstance(claim, Unread) and (claim is None or status_of(claim).get("phase") != "Bound")
