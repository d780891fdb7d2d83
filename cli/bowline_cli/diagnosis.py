"""Why a pod is not bound, from the objects in the cluster: what happens, since when, until when, what helps. Pure.

The rows are those of docs/stuck-pods.md, in the order in which a pod passes its scheduler, the reconciler and the
kubelet. Only fields are read (``bowline.api.request_facts``, ``bowline.api.failed_decision``); sentences are quoted.
Nothing is guessed: what could not be read is said (``Facts.unreadable``), and nothing follows from it.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from bowline.api import names
from bowline.api.failed_decision import condition_of, failed_decision_of
from bowline.api.meta import Object, format_time, is_deleting, key_of, parse_time, status_of
from bowline.api.request_facts import failure_of, reported_status, wait_of
from bowline.framework.reason import Suggestion
from bowline_cli.facts import (
    NOT_READ,
    Explanation,
    Facts,
    absence,
    age_of,
    components,
    creation_time,
    current_request,
    delete_request,
    last_event,
    pod_state,
    pod_uid,
    remedy_of,
    show,
    troubles,
)
from bowline_cli.reader import Unread, acquired_at
from bowline_cli.undecided import devices, explain_undecided, gang_state, running

# A scheduler decides within seconds; one that has not for so long may not be running.
_IDLE: Final = timedelta(minutes=1)


def explain(facts: Facts) -> Explanation | None:
    """Return the explanation; None if neither the pod nor a request for it exists."""
    request = current_request(facts)
    if facts.pod is None:
        return None if request is None else _orphan(facts, request)
    if (facts.pod.get("spec") or {}).get("nodeName"):
        return _bound(facts, facts.pod)
    if is_deleting(facts.pod):
        return _deleting_pod(facts, facts.pod)
    if status_of(facts.pod).get("phase") in ("Succeeded", "Failed"):
        return Explanation(f"the pod has ended without a node: {pod_state(facts.pod)}", creation_time(facts.pod))
    if request is None:
        return explain_undecided(facts, facts.pod)
    return _explain_decision(facts, facts.pod, request)


# --- after the decision ---


def _explain_decision(facts: Facts, pod: Object, request: Object) -> Explanation:
    if is_deleting(request):
        return _deleting(facts, request)
    status = reported_status(request)
    if status.get("phase") == "Failed":
        return _explain_failure(facts, pod, request)
    if status.get("phase") == "Succeeded":
        node = (request.get("spec") or {}).get("selectedNode")
        if pod_uid(request) == pod["metadata"].get("uid"):
            # It was read before the request was.
            return Explanation(f"the pod is bound to node {node} since a moment ago", is_stuck=False)
        cause = f"its BindRequest has Succeeded for node {node}, of an earlier pod of that name"
        return Explanation(cause, commands=(delete_request(request),))
    lack = _lack_of_reconciler(facts, request)
    if lack is not None:
        return lack
    message = str(status.get("reason") or "")
    describe = f"kubectl -n {facts.key.namespace} describe bindrequest {request['metadata']['name']}"
    preparation, rollback = (
        condition_of({"status": status}, "Prepared"),
        condition_of({"status": status}, "RolledBack"),
    )
    if wait_of(status) is not None:
        return _waiting(facts, pod, request, str(preparation.get("message") or message))
    if rollback.get("status") == "False":
        since = parse_time(rollback.get("lastTransitionTime")) or creation_time(request)
        return Explanation(message, since, "the rollback is complete", (describe,))
    if preparation.get("reason") == "Released":
        since = parse_time(preparation.get("lastTransitionTime")) or creation_time(request)
        return Explanation(message, since, "a reconciler that is not being uninstalled leads", (describe,))
    if status.get("phase"):
        since = parse_time(status.get("startTime")) or creation_time(request)
        next_attempt = parse_time(status.get("nextAttemptTime"))
        until = "the next attempt"
        if next_attempt is not None:
            until += f", at {format_time(next_attempt)}" if next_attempt > facts.now else ", which is due"
        return Explanation(message, since, until, (describe,))
    since = creation_time(request)
    uid = request["metadata"].get("uid")
    own_events = [event for event in facts.events if (event.get("related") or {}).get("uid") == uid]
    retries = [event for event in own_events if event.get("reason") == names.EVENT_RETRY]
    if retries:  # the status could not be written
        return Explanation(str(retries[-1].get("message")), since, "the next attempt", (describe,))
    cause = "the reconciler has not reported on the BindRequest yet; it reports what prevents progress after 5 s"
    is_new = since is not None and facts.now - since < _IDLE
    commands = () if is_new else (describe,)
    return Explanation(cause, since, "the reconciler reports", commands, is_stuck=not is_new)


def _waiting(facts: Facts, pod: Object, request: Object, message: str) -> Explanation:
    status = reported_status(request)
    wait = wait_of(status)
    assert wait is not None  # noqa: S101 - the caller has looked
    until = "one of the objects changes; there is no deadline"
    if wait.deadline is not None:
        until = f"one of the objects changes; at the latest it fails with WaitTimeout at {format_time(wait.deadline)}"
        if wait.deadline <= facts.now:
            until = f"it fails with WaitTimeout: its deadline was {format_time(wait.deadline)}"
    commands, details = [], []
    for ref in wait.objects:
        target = facts.objects.get(ref, NOT_READ)
        if isinstance(target, Unread):
            continue
        commands.append(show(ref.key, ref.kind, is_absent=target is None))
        if target is None:
            details.append(absence(ref))
        elif ref.kind == "Pod" and ref.key != key_of(pod):
            details.append(f"{ref}: {pod_state(target)}")
    since = parse_time(condition_of({"status": status}, "Prepared").get("lastTransitionTime")) or creation_time(
        request
    )
    record = failed_decision_of(pod)
    if (
        record is not None
        and record.has_ended
        and record.decision.node == (request.get("spec") or {}).get("selectedNode")
    ):
        times = f"{record.failures} {'time' if record.failures == 1 else 'times'}"
        details.append(f"the decision for this node has failed {times} before, last {record.reason}")
        since = min(since, record.first) if since is not None else record.first
    further_requests = [str(key_of(candidate)) for candidate in facts.requests if candidate is not request]
    details += [f"other requests for the pod: {', '.join(further_requests)}"] if further_requests else []
    details += gang_state(facts)
    describe = f"kubectl -n {facts.key.namespace} describe bindrequest {request['metadata']['name']}"
    return Explanation(message, since, until, tuple(commands or [describe]), tuple(details))


def _explain_failure(facts: Facts, pod: Object, request: Object) -> Explanation:
    status = reported_status(request)
    suggestion = next((each for each in Suggestion if each.value == status.get("suggestion")), None)
    scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
    end = parse_time(status.get("completionTime"))
    until = "the cause is corrected and the BindRequest deleted, for a new decision"
    if suggestion is not None:
        until = suggestion.next_step.format(scheduler=scheduler)
        if end is not None and facts.now - end > _IDLE:
            until += f"; it has not for {age_of(end, facts.now)}: is it running?"
    failure, node = failure_of(status), str((request.get("spec") or {}).get("selectedNode") or "")
    commands, details = [], [*running(facts, scheduler), *devices(facts, pod)]
    for ref in failure.objects if failure is not None else ():
        target = facts.objects.get(ref, NOT_READ)
        commands += [] if isinstance(target, Unread) else [show(ref.key, ref.kind, is_absent=target is None)]
        details += [absence(ref)] if target is None else []
    remedy = remedy_of(facts, failure.reason if failure is not None else "", node)
    commands += [remedy] if remedy else []
    if suggestion is Suggestion.DELETE_POD:
        commands.append(f"kubectl -n {facts.key.namespace} delete pod {facts.key.name}")
    elif suggestion is None:
        commands.append(delete_request(request))
    record = failed_decision_of(pod)
    since = record.first if record is not None and record.has_ended else end
    cause = f"the bind has failed: {status.get('reason')}"
    return Explanation(cause, since, until, tuple(dict.fromkeys(commands)), tuple(details))


def _orphan(facts: Facts, request: Object) -> Explanation:
    if is_deleting(request):
        return _deleting(facts, request)
    cause = (
        f"the pod does not exist; its BindRequest {key_of(request)} remains until the garbage collector or its "
        "scheduler deletes it"
    )
    return Explanation(cause, creation_time(request), commands=(delete_request(request),))


def _deleting_pod(facts: Facts, pod: Object) -> Explanation:
    since, finalizers = parse_time(pod["metadata"].get("deletionTimestamp")), pod["metadata"].get("finalizers") or []
    cause = f"the pod is being deleted; finalizers: {', '.join(finalizers) or 'none'}"
    describe = f"kubectl -n {facts.key.namespace} describe pod {facts.key.name}"
    return Explanation(cause, since, "their owners remove the finalizers", (describe,), is_stuck=bool(finalizers))


def _deleting(facts: Facts, request: Object) -> Explanation:
    finalizers = request["metadata"].get("finalizers") or []
    since = parse_time(request["metadata"].get("deletionTimestamp"))
    if names.FINALIZER not in finalizers:
        cause = f"its BindRequest is being deleted; finalizers of others: {', '.join(finalizers) or 'none'}"
        return Explanation(cause, since, "their owners remove them")
    cause = f"its BindRequest is being deleted; finalizer {names.FINALIZER} keeps it until it is rolled back"
    message = condition_of({"status": reported_status(request)}, "RolledBack").get("message")
    details = (f"rollback: {message}",) if message else ()
    lack = _lack_of_reconciler(facts, request)
    if lack is None:
        describe = f"kubectl -n {facts.key.namespace} describe bindrequest {request['metadata']['name']}"
        return Explanation(cause, since, "the rollback is complete", (describe,), details)
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
    commands: tuple[str, ...] = (f"kubectl -n {facts.system} get leases",)
    if not isinstance(facts.deployments, Unread):
        commands = (
            f"kubectl -n {facts.system} get leases,deployments,pods",
            f"kubectl -n {facts.system} logs --selector app.kubernetes.io/component=reconciler --tail 20",
        )
    return Explanation(cause, creation_time(request), "a reconciler leads", commands, components(facts, "reconciler"))


# --- after the bind ---


def _bound(facts: Facts, pod: Object) -> Explanation:
    node, state, phase = pod["spec"]["nodeName"], pod_state(pod, with_node=False), status_of(pod).get("phase")
    describe = f"kubectl -n {facts.key.namespace} describe pod {facts.key.name}"
    since = parse_time(condition_of(pod, "PodScheduled").get("lastTransitionTime")) or creation_time(pod)
    if phase == "Failed":
        cause = f"the pod has failed on node {node}: {state}"
        return Explanation(cause, since, "its controller creates another one", (describe,), last_event(facts))
    is_ready = condition_of(pod, "Ready").get("status") == "True"
    if phase == "Succeeded" or (phase == "Running" and (is_ready or not troubles(pod))):
        return Explanation(f"the pod is bound to node {node}: {state}", is_stuck=False)
    if phase == "Running":
        cause = f"the pod runs on node {node}, and a container does not: {state}"
        return Explanation(cause, since, "the container starts", (describe,), last_event(facts))
    cause = f"the pod is bound to node {node}; its kubelet has not started it yet: {state}"
    return Explanation(cause, since, "the kubelet starts it", (describe,), last_event(facts))
