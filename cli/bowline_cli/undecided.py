"""Why a pod has no decision: what its scheduler, its gates, its earlier decisions or its creation say. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final

from bowline.api import names
from bowline.api.failed_decision import condition_of
from bowline.api.gang import counts_as_bound, counts_for_gang, min_members
from bowline.api.meta import Object, ObjectRef, format_time, key_of, parse_time, status_of
from bowline.api.request_facts import reported_status
from bowline.kube.denial import Denial
from bowline_cli.facts import (
    Explanation,
    Facts,
    GangFacts,
    PodRecord,
    ReleaseInfo,
    Section,
    age,
    creation_time,
    describe_pod,
    helping_commands,
    last_event,
    last_warning,
    object_states,
    ready_replicas,
    record_of,
    scheduler_of,
)
from bowline_cli.reader import Unread, acquired_at

# A scheduler decides within seconds; one that has not for so long may not be running.
IDLE: Final = timedelta(minutes=1)
# Pods of a gang that are named.
_NAMED_MEMBERS: Final = 8
# Below it a name that is not served is another scheduler's, not a misspelt one.
_MISSPELT: Final = 0.85


def explain_uncreated(
    owner: Object, kind: str, facts: Facts, failure: tuple[str, datetime | None] | None
) -> Explanation:
    """Explain a workload without the pods that it should have. ``failure``: of a creation, and since when."""
    key, since = facts.key, creation_time(owner)
    describe = f"kubectl -n {key.namespace} describe {kind.lower()} {key.name}"
    if (owner.get("spec") or {}).get("suspend"):
        until = "spec.suspend is removed, by a queue such as Kueue or by its owner"
        return Explanation(f"{kind} {key} is suspended and has no pods", since, until, (describe,))
    if why := _needs_no_pods(owner):
        return Explanation(f"{kind} {key} {why}", since, "", (describe,), is_stuck=False)
    if failure is None:
        spec, what = owner.get("spec") or {}, "no creation has failed"
        if spec.get("paused"):
            what = "spec.paused is true"
        elif spec.get("managedBy") not in (None, "kubernetes.io/job-controller"):
            what = f"{spec['managedBy']} manages it, perhaps in another cluster"
        elif "schedule" in spec:
            what = f"it creates a Job at the times {spec['schedule']}"
        elif "events" in facts.unreadable:
            what = "whether a creation has failed is not known without the right to list events"
        return Explanation(f"{kind} {key} has no pods yet; {what}", since, "", (describe,))
    message, failed_since = failure
    cause = f"its pods are not created: {Denial.of_pod(message)}"
    denial = Denial.of(message)  # a controller repeats the API server's message
    if denial.failed_webhook:
        check = f"kubectl -n {facts.system} get pods,endpointslices"
        until = "a replica of the webhook answers; the controller retries"
        return Explanation(cause, failed_since, until, (check,), ready_replicas(facts, "webhook"))
    if denial.quota:
        command = f"kubectl -n {key.namespace} describe resourcequota"
        return Explanation(cause, failed_since, "others release the quota, or it is raised", (command,))
    until = "the pod template is corrected, or the cause is removed; the controller retries"
    return Explanation(cause, failed_since, until, (describe,))


def _needs_no_pods(owner: Object) -> str:
    """Return why a workload rightly has no pods; empty if it should have some."""
    if any(condition_of(owner, end_condition).get("status") == "True" for end_condition in ("Complete", "Failed")):
        return "has ended, and has no pods"
    spec, status = owner.get("spec") or {}, status_of(owner)
    for field in ("replicas", "parallelism"):
        if spec.get(field) == 0:
            return f"has {field} 0, so it has no pods"
    if status.get("desiredNumberScheduled") == 0 and status.get("observedGeneration"):  # else nobody has counted
        return "has no pods: its node selector, affinity and tolerations fit no node"
    return ""


def explain_undecided(facts: Facts, pod: Object) -> Explanation:
    """Explain a pod without a request."""
    spec, since, scheduler = pod.get("spec") or {}, creation_time(pod), scheduler_of(pod)
    describe = describe_pod(facts)
    gates = [str(gate.get("name")) for gate in spec.get("schedulingGates") or ()]
    if gates:
        cause = f"no scheduler decides while the pod has scheduling gates: {', '.join(gates)}"
        until = "their owners remove the gates"
        return Explanation(cause, since, until, (describe,), section=Section.NO_DECISION)
    served_names = facts.info.scheduler_names if facts.info is not None else ()
    condition = condition_of(pod, "PodScheduled")
    is_reported = condition.get("status") == "False" and bool(condition.get("message"))
    if served_names and "*" not in served_names and scheduler not in served_names:
        return _unserved_name(facts, pod, served_names, condition if is_reported else {})
    record, until = record_of(pod), f"scheduler {scheduler} decides again"
    if record is not None and record.decision.has_ended:
        if facts.now - record.decision.last > IDLE:
            until += f"; it has not for {age(facts.now - record.decision.last)}: is it running?"
        return explain_record(facts, pod, record, until)
    claims = f"kubectl -n {facts.key.namespace} get resourceclaims"
    commands: tuple[str, ...] = (describe, claims) if spec.get("resourceClaims") else (describe,)
    if is_reported:
        cause = f"scheduler {scheduler} has found no node: {condition['message']}"
        since = parse_time(condition.get("lastTransitionTime")) or since
        details = scheduling_state(facts, pod)
        return Explanation(cause, since, until, commands, details, section=Section.NO_DECISION)
    cause = f"no scheduler has decided: no BindRequest names the pod, and {scheduler} has reported nothing about it"
    if names.PLURAL in facts.unreadable:
        cause = (
            f"{scheduler} has reported nothing about the pod; whether a BindRequest names it is not known "
            "without the right to list bindrequests"
        )
    warning = last_warning(facts)
    cause = f"no scheduler has decided; {warning}" if warning else cause
    event = () if warning else last_event(facts)
    details = (*scheduler_state(facts, pod), *event, *scheduling_state(facts, pod))
    if facts.gang is not None and (shortage := gang_cause(facts, (facts.gang.ref,), "")):
        commands = helping_commands(facts, (facts.gang.ref,))
        until = "the other pods are created, or the PodGroup requires fewer"
        return Explanation(shortage, since, until, commands, details, section=Section.NO_DECISION)
    until = f"scheduler {scheduler} decides: is it installed and running?"
    return Explanation(cause, since, until, commands, details, section=Section.NO_DECISION)


def _unserved_name(facts: Facts, pod: Object, served_names: Sequence[str], condition: Object) -> Explanation:
    scheduler = scheduler_of(pod)
    cause = f"schedulerName {scheduler} is not one that Bowline serves ({', '.join(served_names)})"
    is_default = scheduler == names.DEFAULT_SCHEDULER
    matches = [] if is_default else get_close_matches(scheduler, served_names, 1, _MISSPELT)
    if matches:
        cause += f"; did you mean {matches[0]}?"
    if condition:
        cause += f"; {scheduler} reports: {condition['message']}"
    until = f"a scheduler named {scheduler} binds it; to change the immutable name, delete and create the pod"
    command = f"kubectl -n {facts.key.namespace} get pod {facts.key.name} -o jsonpath='{{.spec.schedulerName}}'"
    details = (*scheduler_state(facts, pod), *last_event(facts))
    return Explanation(cause, creation_time(pod), until, (command,), details, section=Section.NO_DECISION)


def explain_record(facts: Facts, pod: Object, record: PodRecord, until: str) -> Explanation:
    """Explain a pod of whose present decision nothing is reported, by its last failure."""
    decision = record.decision
    commands = helping_commands(facts, decision.objects, decision.reason, decision.decision.node)
    details = [*object_states(facts, decision.objects, record.cause), *last_failure(record)]
    details += driver_state(facts, pod)
    longest = facts.info.repeat_backoff if facts.info is not None else ReleaseInfo().repeat_backoff
    denied_until = decision.denied_until(longest)
    if facts.now < denied_until:
        details.append(f"the same decision is denied until {format_time(denied_until)}")
    condition = condition_of(pod, "PodScheduled")
    if condition.get("status") == "False" and condition.get("message"):
        details.append(f"scheduler {scheduler_of(pod)} reports: {condition['message']}")
    section, cause = Section.BETWEEN_DECISIONS, gang_cause(facts, decision.objects, record.cause)
    return Explanation(cause, record.since, until, commands, tuple(details), section=section)


def last_failure(record: PodRecord | None) -> tuple[str, ...]:
    """Return the last decision that has failed."""
    if record is None:
        return ()
    decision = record.decision
    times = f", {decision.failures} times" if decision.failures > 1 else ""
    at = format_time(decision.last)
    what = f"has failed with {decision.reason}" if decision.has_ended else "is attempted again after a failure"
    return (f"the decision for node {decision.decision.node} {what} at {at}{times}",)


def scheduler_state(facts: Facts, pod: Object) -> tuple[str, ...]:
    """Return what the Leases say of the pod's scheduler: only some schedulers have one of their name."""
    if not facts.schedulers:
        return ()
    lease = max(facts.schedulers, key=lambda lease: str((lease.get("spec") or {}).get("renewTime") or ""))
    renewal = parse_time((lease.get("spec") or {}).get("renewTime"))
    renewal_text = f"renewed {age(facts.now - renewal)} ago" if renewal is not None else "never renewed"
    state = "is running" if acquired_at(lease, facts.now) is not None else "is not running"
    return (f"{scheduler_of(pod)} {state}: Lease {key_of(lease)} was {renewal_text}",)


def scheduling_state(facts: Facts, pod: Object) -> tuple[str, ...]:
    """Return what a scheduler may wait for: the pod's gang, devices."""
    return (*gang_state(facts), *driver_state(facts, pod))


def gang_state(facts: Facts) -> tuple[str, ...]:
    """Return how many pods of the pod's gang have a decision and which have none, and what its PodGroup reports."""
    gang = facts.gang
    if gang is None:
        return ()
    if gang.pod_group is None:
        return (f"{gang.ref} does not exist",)
    minimum, messages = 0, []
    if not isinstance(gang.pod_group, Unread):
        minimum, status = min_members(gang.pod_group), status_of(gang.pod_group)
        conditions = [*(status.get("schedulingConditions") or ()), *(status.get("conditions") or ())]
        messages = [str(each["message"]) for each in conditions if isinstance(each, dict) and each.get("message")]
    return (*_decisions(gang, minimum), *(f"{gang.ref}: {message}" for message in messages[-1:]))


def gang_cause(facts: Facts, objects: Sequence[ObjectRef], cause: str) -> str:
    """Return the cause; if it is about the pod's gang, and that has too few pods, how many exist."""
    gang = facts.gang
    if gang is None or gang.ref not in objects or isinstance(gang.members, Unread):
        return cause
    if gang.pod_group is None or isinstance(gang.pod_group, Unread):
        return cause
    count, minimum = sum(map(counts_for_gang, gang.members)), min_members(gang.pod_group)
    return cause if count >= minimum else f"{gang.ref} requires {minimum} pods, and {count} exist: create the others"


def _decisions(gang: GangFacts, minimum: int) -> tuple[str, ...]:
    """Return the count of a gang's decisions. ``minimum``: of pods that are bound together; 0: not known, or none."""
    if isinstance(gang.members, Unread) or isinstance(gang.requests, Unread):
        return ()
    phases = {
        (request.get("spec") or {}).get("podName"): reported_status(request).get("phase") for request in gang.requests
    }
    lacking = sorted(
        f"{name} (failed)" if phases.get(name) == "Failed" else name
        for pod in gang.members
        if not counts_as_bound(pod) and phases.get(name := pod["metadata"]["name"], "Failed") == "Failed"
    )
    count = len(gang.members)
    text = f"{gang.ref}{f' requires {minimum} pods' if minimum else ''}: {count - len(lacking)} of its {count} pods "
    text += "have a decision"
    if lacking:
        rest = len(lacking) - _NAMED_MEMBERS
        text += f"; without one: {', '.join(lacking[:_NAMED_MEMBERS])}{f' and {rest} more' if rest > 0 else ''}"
    return (text,)


def driver_state(facts: Facts, pod: Object) -> tuple[str, ...]:
    """Return that no driver offers devices, for a pod with claims."""
    if facts.slices != 0 or not (pod.get("spec") or {}).get("resourceClaims"):
        return ()
    return ("the cluster has no ResourceSlice: no DRA driver offers devices, so its claims cannot be allocated",)
