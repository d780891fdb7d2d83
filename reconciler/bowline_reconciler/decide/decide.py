"""What to do with a request, given its snapshot: one table, read top to bottom; the first row that applies decides.

Pure: data in, a Decision out; nothing here reads, writes or logs. Where the snapshot is not sufficient, the decision
is to read an object live; the I/O layer does that and decides again. **Absence from a cache proves nothing**: a bound
pod and a deleted pod leave a watch of unbound pods alike. Decisions that cannot be undone (a terminal failure, a
rollback) and retries are never based on a cache alone: it may be stale.
"""

from dataclasses import dataclass
from datetime import timedelta

from bowline.api.bindrequest import BOUND, AllocationKind, BindRequest, BindRequestSpec, Phase
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.api.request_facts import failure_of
from bowline.api.taints import CORDONED, MAX_TOLERATIONS, describe, is_of_health, untolerated
from bowline.framework.config import CLUSTER_NAMESPACES, Settings
from bowline.framework.interface.status import UNLIMITED, Answers, Fatal, Status, is_word
from bowline.framework.reason import Reason, Suggestion
from bowline_reconciler.decide.actions import (
    GATES,
    NODE_HEALTH,
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
from bowline_reconciler.decide.report import sentence
from bowline_reconciler.decide.snapshot import Absent, PodView, Snapshot, Target, Times, is_bound_as_asked

# `kubectl apply -f` sends objects in file order: a request may be created shortly before its pod.
POD_GRACE = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ReadLive:
    """Read the target live, then decide again."""

    target: Target


# What must have been read live before a request fails for that reason.
_READ_BEFORE_FAILURE = {
    Reason.POD_GONE: Target.POD,
    Reason.BOUND_ELSEWHERE: Target.POD,
    Reason.WAIT_TIMEOUT: Target.POD,
    Reason.NODE_GONE: Target.NODE,
    Reason.NODE_UNSCHEDULABLE: Target.NODE,
}


def decide(facts: Snapshot, settings: Settings) -> Action | ReadLive:
    """Return the first row that applies, or the live read that this row requires first."""
    decision = _first_row(facts, facts.answers or Answers(), settings)
    missing = _required_live_reads(decision, facts) - facts.live
    return ReadLive(min(missing, key=lambda target: target.value)) if missing else decision


def _required_live_reads(decision: Action | ReadLive, facts: Snapshot) -> set[Target]:
    """Return what must be read live before the decision is executed."""
    request = facts.request
    if isinstance(decision, Attempt):
        # A first attempt that nothing has delayed follows the request's own watch event. Before any other one, the
        # request may have been deleted and re-created with other devices while the watch is silent.
        return {Target.REQUEST} if request.failed_attempts or facts.was_delayed else set()
    if not request.pod_key.name:
        return set()  # there is nothing to read
    if isinstance(decision, SetOwner):
        # Owned by a deleted pod, the request would fail, or be garbage-collected with it.
        return {Target.POD}
    reads = set()
    if isinstance(decision, Fail) and decision.status.reason in _READ_BEFORE_FAILURE:
        reads.add(_READ_BEFORE_FAILURE[decision.status.reason])
    may_undo = request.has_finalizer or request.is_rollback_incomplete
    if isinstance(decision, Rollback) or (isinstance(decision, Fail) and may_undo):
        # Rolling back what a running pod needs is worse than any delay.
        reads.add(Target.POD)
    return reads


def _first_row(facts: Snapshot, answers: Answers, settings: Settings) -> Action | ReadLive:
    request = facts.request
    if request.deleting or request.phase is not Phase.PENDING or facts.uninstalling:
        return _of_finished(request, facts, answers)
    if not request.pod_key.name:
        return _invalid(request)
    if not request.pod_uid:
        return _without_owner(request, facts.pod, facts.times)
    if facts.pod is Absent.NOT_IN_CACHE:
        return ReadLive(Target.POD)
    on_pod = _of_pod(request, facts.pod)
    if on_pod is not None:
        return on_pod
    assert isinstance(facts.pod, PodView)  # noqa: S101 - _of_pod has decided for an absent one
    failure = facts.ending or pending_failure(request)
    if failure is not None:
        # Whatever has changed since: what the pod needs may be rolled back already.
        return failure
    return _of_attempt(request, facts.pod, facts, answers, settings)


def _of_finished(request: BindRequest, facts: Snapshot, answers: Answers) -> Action | ReadLive:
    """Rows for a request that is being deleted, Succeeded or Failed, and for any while the release is uninstalled."""
    if not request.has_finalizer:
        return Forget()
    if request.is_misnamed:
        return DropFinalizer()
    if request.phase is Phase.SUCCEEDED:
        return Forget() if answers.holders else DropFinalizer()
    if facts.pod is Absent.NOT_IN_CACHE and request.pod_key.name:
        return ReadLive(Target.POD)
    if is_bound_as_asked(request, facts.pod):
        is_complete = request.phase is not Phase.PENDING or (request.deleting and not answers.holders)
        return DropFinalizer() if is_complete else Complete()
    if request.deleting:
        return Rollback(Status.fatal("the request was deleted", Reason.SUPERSEDED))
    if request.phase is Phase.PENDING:
        why = "Bowline is being uninstalled, so it does not bind the pod"
        return Rollback(Status.fatal(why, Reason.SUPERSEDED))
    failure = stored_failure(request)
    return Rollback(failure.status if failure is not None else Status.fatal("the request has failed"))


def _without_owner(request: BindRequest, pod: PodView | Absent, times: Times) -> Action | ReadLive:
    if pod is Absent.NOT_IN_CACHE:
        return ReadLive(Target.POD)
    if isinstance(pod, PodView):
        if request.created is not None and pod.created is not None and pod.created > request.created + POD_GRACE:
            # Its own pod is gone, with the owner reference to it: `kubectl delete pod --cascade=orphan`.
            why = f"pod {request.pod_key} is another one now (UID {pod.uid}, created after the request)"
            return Fail(Status.fatal(why, Reason.POD_GONE))
        return SetOwner(pod.uid)
    if pod is Absent.UNREADABLE:
        return _unreadable(request)
    if times.age < POD_GRACE:
        return RequeueAfter(POD_GRACE - times.age)
    return Fail(Status.fatal(f"pod {request.pod_key} does not exist; create it before its request", Reason.POD_GONE))


def _of_pod(request: BindRequest, pod: PodView | Absent) -> Action | None:
    """Rows that depend on the pod only; None if it may still be bound."""
    name = request.pod_key
    if pod is Absent.UNREADABLE:
        return _unreadable(request)
    if isinstance(pod, Absent):
        return Fail(Status.fatal(f"pod {name} no longer exists", Reason.POD_GONE))
    if pod.uid != request.pod_uid:
        why = f"pod {name} is another one now (UID {pod.uid}, asked for {request.pod_uid})"
        return Fail(Status.fatal(why, Reason.POD_GONE))
    if pod.node:
        if is_bound_as_asked(request, pod):
            return Complete()
        why = f"pod {name} runs on node {pod.node}, not on {request.selected_node}"
        return Fail(Status.fatal(why, Reason.BOUND_ELSEWHERE))
    if pod.deleting:
        return Fail(Status.fatal(f"pod {name} is being deleted", Reason.POD_GONE))
    if pod.has_ended:
        return Fail(Status.fatal(f"pod {name} has already ended", Reason.POD_GONE))
    return None


def _unreadable(request: BindRequest) -> Fail:
    why = (
        f"pod {request.pod_key} is not read: it, or its managedFields, have too many values (entries of lists and "
        "maps) or JSON that the reader refuses; create it again without"
    )
    return Fail(Status.fatal(why, Reason.INVALID, Suggestion.DELETE_POD))


def _of_allocations(spec: BindRequestSpec, answers: Answers, settings: Settings) -> Fail | None:
    """What prevents an attempt if no plugin serves all that the request asks for; None if the plugins do."""
    missing_kinds = sorted(spec.demands - answers.demands)
    if missing_kinds:
        why = f"no enabled plugin serves {', '.join(missing_kinds)}; enable one, or let the scheduler ask for less"
        if missing_kinds == [AllocationKind.FRACTION]:
            value = (
                "config.plugins.gpu_sharing.enabled" if settings.gpu_sharing.enabled else "config.gpuSharing.enabled"
            )
            why = f"GPU sharing is off; the chart's value {value}: true switches it on"
        return Fail(Status.fatal(why, Reason.NO_PLUGIN))
    return None


def _of_attempt(
    request: BindRequest, pod: PodView, facts: Snapshot, answers: Answers, settings: Settings
) -> Action | ReadLive:
    """Rows between a pod that may be bound and an attempt."""
    if request.spec is None:
        return _invalid(request)
    unserved = _of_allocations(request.spec, answers, settings)
    if unserved is not None:
        return unserved
    if not settings.schedules(pod.scheduler):
        ours = ", ".join(settings.scheduler_names)
        why = f"pod {request.pod_key} has schedulerName {pod.scheduler}; the setting schedulerNames lists {ours}"
        return Fail(Status.fatal(why, Reason.NOT_OURS))
    if request.key.namespace in CLUSTER_NAMESPACES:
        why = f"no pod of {', '.join(CLUSTER_NAMESPACES)} is bound: these namespaces are the cluster's own"
        return Fail(Status.fatal(f"{why}; give pod {request.pod_key} another schedulerName", Reason.NOT_OURS))
    if pod.gates:
        times, limit = facts.times, settings.binding.wait_timeout
        left = times.wait_left(limit, GATES)
        why = f"pod {request.pod_key} still has scheduling gates: {', '.join(pod.gates)}"
        if left <= timedelta():
            why = f"{why} after {times.wait_time.total_seconds():.0f} s"
            return Fail(Status.fatal(why, Reason.WAIT_TIMEOUT, Suggestion.RETRY_SAME_NODE))
        ref = ObjectRef("v1", "Pod", request.pod_key, pod.uid, pod.version)
        return Wait((ref,), why, left, GATES, {GATES: limit})
    on_node = _of_node(request, pod, facts, settings)
    if on_node is not None:
        return on_node
    if facts.times.retry_in > timedelta():
        return RequeueAfter(facts.times.retry_in)
    return Attempt(answers.effects)


def _of_node(
    request: BindRequest, pod: PodView, facts: Snapshot, settings: Settings
) -> Wait | Fail | ReadLive | None:
    """Rows that depend on the node; None if the pod may be bound to it."""
    if facts.node is Absent.NOT_IN_CACHE:
        return ReadLive(Target.NODE)
    if facts.node is Absent.UNREADABLE:
        why = f"node {request.selected_node} is not read: it has too many values, or JSON that the reader refuses"
        return Fail(Status.fatal(why, Reason.INVALID, Suggestion.RESCHEDULE_ELSEWHERE))
    if isinstance(facts.node, Absent) or facts.node.deleting:
        what = "does not exist" if isinstance(facts.node, Absent) else "is being deleted"
        why = f"node {request.selected_node} {what}"
        return Fail(Status.fatal(why, Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE))
    if len(pod.tolerations) > MAX_TOLERATIONS:
        count = len(pod.tolerations)
        why = f"pod {request.pod_key} has {count} tolerations, and at most {MAX_TOLERATIONS} are compared"
        return Fail(Status.fatal(f"{why}; create it with fewer", Reason.INVALID, Suggestion.DELETE_POD))
    node_ref = ObjectRef("v1", "Node", ObjectKey("", request.selected_node))
    taint = untolerated((entry for entry in facts.node.taints if not is_of_health(entry)), pod.tolerations)
    ill = untolerated(facts.node.taints, pod.tolerations) if taint is None else None
    if ill is not None and (left := settings.binding.node_health_grace - facts.node_ill_for) > timedelta():
        why = f"node {request.selected_node} has the taint {describe(ill)}; the request fails if that lasts"
        return Wait((node_ref,), why, UNLIMITED, NODE_HEALTH, poll=left)
    taint = taint or ill
    if taint is not None:
        # It is read later than it was true.
        state = "was cordoned" if taint is CORDONED else f"had the taint {describe(taint)}"
        why = f"node {request.selected_node} {state}, which pod {request.pod_key} does not tolerate"
        return Fail(Status.fatal(why, Reason.NODE_UNSCHEDULABLE, Suggestion.RESCHEDULE_ELSEWHERE).about(node_ref))
    return None


def pending_failure(request: BindRequest) -> Fail | None:
    """Return the terminal failure that the status announces for the rollback's completion; None if there is none.

    After a restart or change of leader the rollback continues; what failed terminally is not attempted again.
    """
    return stored_failure(request) if request.is_rollback_incomplete else None


def stored_failure(request: BindRequest) -> Fail | None:
    """Return the terminal failure that the status has; None without one, or for a reason of another version."""
    fact = failure_of(request.status)
    reason = next((member for member in Reason if fact is not None and member.value == fact.reason), None)
    if fact is None or reason is None:
        return None
    suggestion_value = request.status.get("suggestion")
    suggestion = next((member for member in Suggestion if member.value == suggestion_value), None)
    message = str(request.condition(BOUND).get("message") or "")
    own_plugin, _, word = fact.plugin_reason.rpartition("/")
    plugin = fact.plugin or own_plugin
    message = message.removesuffix(sentence("", plugin))
    word = word if is_word(word) else ""
    return Fail(Fatal((message,), plugin, suggestion, fact.objects, reason, word))


def _invalid(request: BindRequest) -> Fail:
    why = "; ".join(str(error) for error in request.errors) or "spec.podName: is required"
    return Fail(Status.fatal(why, Reason.INVALID))
