"""Binding by POST, for every bind plugin that uses it, and the Status of its result."""

from dataclasses import replace
from datetime import timedelta

from bowline.api.failed_decision import failed_decision_of, print_of
from bowline.api.meta import Object, ObjectKey, ObjectRef
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import UNLIMITED, Fatal, Retriable, Status, Transient, Waiting
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.binding import BindingResult, BindOutcome, annotation_errors, label_errors, post_binding
from bowline.kube.denial import Denial
from bowline.kube.errors import InfrastructureError, NotStoredError

# A release's policies and its processes are not replaced at the same moment: a denial by one of them is not about the
# request, and neither is a write that somebody's policy changes. A poll, because no watch reports a policy.
_POLICY_POLL = timedelta(seconds=10)


async def bind_by_post(ctx: BindContext) -> Status:
    """Bind the pod to the selected node by a Binding that carries ``ctx.annotations``, ``ctx.labels`` and the UID.

    The API server stores a Binding's annotations unvalidated and then rejects every update of the pod, so they are
    validated here first.
    """
    present = ((ctx.pod or {}).get("metadata") or {}).get("annotations") or {}
    errors = annotation_errors(ctx.annotations, present) + label_errors(ctx.labels)
    if errors:
        return Status.fatal("the Binding would spoil the pod: " + "; ".join(str(error) for error in errors))
    request, node = ctx.request, ctx.spec.selected_node
    try:
        result = await post_binding(ctx.client, request.pod_key, request.pod_uid, node, ctx.annotations, ctx.labels)
    except InfrastructureError:
        ctx.posts.rejected = True
        raise
    ctx.posts.acknowledged = result.outcome is BindOutcome.BOUND
    ctx.posts.rejected = result.outcome is BindOutcome.REFUSED
    return binding_status(result, denied_on(ctx.pod or {}, node, result.message))


def denied_on(pod: Object, node: str, message: str) -> str:
    """Return the other node to which the pod's last decision was denied by the same answer; empty if none."""
    failure = failed_decision_of(pod)
    if failure is None or not failure.has_ended or failure.denial != print_of(message):
        return ""
    return failure.decision.node if failure.decision.node != node else ""


def binding_status(result: BindingResult, other_node: str = "") -> Status:
    """Return the attempt's Status for a Binding's result. ``other_node``: see ``denied_on``."""
    match result.outcome:
        case BindOutcome.BOUND:
            return Status.ok()
        case BindOutcome.NOT_FOUND:
            return Status.fatal(result.message, Reason.POD_GONE)
        case BindOutcome.REFUSED:
            status = denied_status(result.message)
            # A policy's denial may concern this pod on this node. No scheduling decision resolves a missing
            # permission, or a denial that was the same for another node.
            if not isinstance(status, Fatal) or status.reason is not Reason.REJECTED:
                return status
            if other_node:  # no node helps
                return replace(Status.fatal(status.message), denial=print_of(result.message))
            suggestion, denial = Suggestion.RESCHEDULE_ELSEWHERE, print_of(result.message)
            return replace(status, suggestion=suggestion, denial=denial)
        case BindOutcome.CONFLICT | BindOutcome.UNKNOWN:
            # The caller reads the pod to find out whether it is bound.
            why = result.message or "the outcome of the Binding is not known"
            return Transient((why,), retry_after=result.retry_after)


def not_stored_status(error: NotStoredError) -> Waiting:
    """Return the wait for a write that was changed before it was stored: neither the node's failure nor the pod's."""
    return Status.wait(str(error), retry_after=_POLICY_POLL, timeout=UNLIMITED)


def denied_status(message: str) -> Waiting | Retriable | Fatal:
    """Return the Status for a rejected write: a missing permission or a policy is terminal, an exceeded quota and a
    policy of Bowline itself are not: Helm replaces policies before processes, so it may be that of another version.
    """
    denial = Denial.of(message)
    if denial.own_policy:
        why = (
            "a policy of Bowline itself denies a write; use one version of the chart and the reconciler, and for "
            f"objects of plugins use the chart's values that `bowline plugin access` prints: {message}"
        )
        return Status.wait(why, retry_after=_POLICY_POLL, timeout=UNLIMITED)
    if denial.quota:  # a retry may succeed
        return Status.retry(message)
    right = denial.right
    if right is None:
        return Status.fatal(message)
    rule = f'apiGroups: ["{right.group}"], resources: ["{right.resource}"], verbs: ["{right.verb}"]'
    why = f"the reconciler lacks a right ({rule}); add it to its role: {message}"
    # Of a namespace that was deleted with its roles, the API server states a right that is missing, too.
    namespaces = (ObjectRef("v1", "Namespace", ObjectKey("", right.namespace)),) if right.namespace else ()
    return Status.fatal(why, Reason.RBAC_MISSING).about(*namespaces)
