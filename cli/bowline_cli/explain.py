"""``bowline explain``: why a pod is not bound, since when, until when, and the command that helps; or all such pods.

Reads only. What the user may not read is named in one line, and the rest is explained without it. What every user
needs of the release, its chart publishes in a ConfigMap that all may read: the configuration itself may have
confidential arguments of plugins. ``diagnosis`` decides.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any, Final

from bowline.api import names
from bowline.api.failed_decision import condition_of
from bowline.api.meta import Object, ObjectKey, format_time, key_of, parse_time, status_of
from bowline_cli.cluster import Api, add_cluster_options, namespace_of, run_connected
from bowline_cli.diagnosis import explain
from bowline_cli.facts import Explanation, Facts, ReleaseInfo, age, creation_time, scheduler_of
from bowline_cli.kubeconfig import ClusterError
from bowline_cli.reader import Reader, Unread, readable
from bowline_cli.reading import Reading, lacks_view, read_facts, requests_path, time_of
from bowline_cli.rights import Rights, plural_of
from bowline_cli.terminal import printable
from bowline_cli.undecided import explain_uncreated


@dataclass(frozen=True, slots=True)
class ExplainedObject:
    """What is explained: an object of a kind, and what was read and follows. ``facts``: of the object's key."""

    kind: str
    facts: Facts
    explanation: Explanation

    def __str__(self) -> str:
        return f"{self.kind} {self.facts.key}"


def for_reader(rights: Rights, subject: ExplainedObject) -> ExplainedObject:
    """Return the explanation with the commands that the user may run; the others are an administrator's."""
    explanation = subject.explanation
    commands = [command for command in explanation.commands if rights.allow(command)]
    denied = [command for command in explanation.commands if command not in commands]
    details = [*explanation.details, *(f"ask an administrator to run: {command}" for command in denied)]
    if explanation.afterwards:
        allowed = next(filter(rights.allow, explanation.afterwards), "")
        who = "" if allowed else "ask an administrator to run, "
        details.append(f"{who}once the cause is corrected: {allowed or explanation.afterwards[0]}")
    return replace(subject, explanation=replace(explanation, commands=tuple(commands), details=tuple(details)))


def as_text(subject: ExplainedObject) -> str:
    """Return the explanation as text."""
    facts, explanation = subject.facts, subject.explanation
    lines = [f"{subject}: {explanation.cause}"]
    if explanation.since is not None:
        lines.append(f"  since  {format_time(explanation.since)} ({age(facts.now - explanation.since)})")
    lines += [f"  until  {explanation.until}"] if explanation.until else []
    lines += [f"  next   {command}" for command in explanation.commands]
    lines += [f"  also   {detail}" for detail in explanation.details]
    lines += [f"  {not_read(facts.unreadable)}"] if facts.unreadable else []
    if facts.info is not None and facts.info.docs:
        page = f"/stuck-pods.html#{explanation.section}" if explanation.section else ""
        lines.append(f"  more   {facts.info.docs}{page}")
    return "\n".join(map(printable, lines))


def not_read(unreadable: Iterable[str]) -> str:
    """Return the line that names what could not be read."""
    return f"not read (rights): {', '.join(unreadable)}"


def as_table(subjects: Sequence[ExplainedObject], now: datetime, unreadable: Sequence[str] = ()) -> str:
    """Return one line for each subject, in columns, and below them what could not be read."""
    note = f"\n{printable(not_read(unreadable))}" if unreadable else ""
    if not subjects:
        return f"no pod waits{note}"
    rows = [("NAMESPACE", "NAME", "AGE", "CAUSE")]
    for subject in subjects:
        key, since = subject.facts.key, subject.explanation.since
        name = key.name if subject.kind == "Pod" else f"{subject.kind.lower()}/{key.name}"
        rows.append((key.namespace, name, age(now - since) if since else "", subject.explanation.cause))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return (
        "\n".join(
            printable("   ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])))
            for row in rows
        )
        + note
    )


def as_json(subjects: Sequence[ExplainedObject], *, is_list: bool) -> str:
    """Return the explanations as JSON: one object, or ``{"items": [...]}``."""
    items: list[Mapping[str, Any]] = []
    for subject in subjects:
        explanation = subject.explanation
        items.append(
            {
                "kind": subject.kind,
                "namespace": subject.facts.key.namespace,
                "name": subject.facts.key.name,
                "cause": explanation.cause,
                "since": format_time(explanation.since) if explanation.since is not None else None,
                "until": explanation.until,
                "next": list(explanation.commands),
                "also": list(explanation.details),
                "notRead": list(subject.facts.unreadable),
                "isStuck": explanation.is_stuck,
            }
        )
    return json.dumps({"items": items} if is_list else items[0], indent=2)


EXIT_EXPLAINED, EXIT_NOT_FOUND = 0, 1


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A kind whose objects own pods. ``api``: group and version; ``short_names``: as kubectl has them."""

    name: str
    api: str
    short_names: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """Its name in paths."""
        return plural_of(self.name.lower())

    def is_named(self, text: str) -> bool:
        """Return whether a user names it so, perhaps with its API group."""
        return text.lower().partition(".")[0] in (self.name.lower(), self.plural, *self.short_names)

    def path(self, scope: str) -> str:
        """Return the path of its objects in a scope: ``/namespaces/NAME``, or empty for all namespaces."""
        return f"/apis/{self.api}{scope}/{self.plural}"


# In the order in which a name without a kind is looked up, after pods.
WORKLOADS: Final = (
    WorkloadKind("Deployment", "apps/v1", ("deploy",)),
    WorkloadKind("StatefulSet", "apps/v1", ("sts",)),
    WorkloadKind("Job", "batch/v1"),
    WorkloadKind("DaemonSet", "apps/v1", ("ds",)),
    WorkloadKind("ReplicaSet", "apps/v1", ("rs",)),
    WorkloadKind("CronJob", "batch/v1", ("cj",)),
)
_POD: Final = ("pod", "pods", "po")
# Their pods are created by the controllers of other kinds.
_INDIRECT: Final = ("Deployment", "CronJob")
EXAMPLES: Final = """examples:
  bowline explain train-7d9f                 a pod of the context's namespace
  bowline explain deploy/train -n team       the pod of a workload that waits longest, or why it has none
  bowline explain -A                         all pods that wait, in all namespaces
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Explain why a pod is not bound: what happens, since when, until when, and what helps. Without a name, list "
        "the pods that wait. Exit status: 0 explained, 1 no such pod, 2 the cluster cannot be reached, or bad usage."
    )
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    parser.add_argument("target", metavar="[KIND/]NAME", nargs="?", help="a pod, or a workload such as deploy/train")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="list the pods of all namespaces")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(%(default)s)")
    parser.add_argument(
        "--system-namespace", default="bowline-system", metavar="NAME", help="of the release (%(default)s)"
    )
    add_cluster_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if options.target and options.all_namespaces:
        print("a NAME is of one namespace: leave out -A, or the name", file=sys.stderr)
        return 2
    return run_connected(options, lambda api: _explain(api, options))


def _explain(api: Api, options: argparse.Namespace) -> int:
    reading = Reading.begin(Reader(api), options.system_namespace)
    if not options.target:
        namespace = "" if options.all_namespaces else namespace_of(api, options)
        subjects = stuck_subjects(reading, namespace)
        if options.output == "json":
            rights = Rights(api)
            print(as_json([for_reader(rights, subject) for subject in subjects], is_list=True))
        else:
            print(as_table(subjects, reading.now, tuple(reading.unread)))
        return EXIT_EXPLAINED
    subject = find_subject(reading, namespace_of(api, options), options.target)
    if subject is None:
        unread = f"; {not_read(reading.unread)}" if reading.unread else ""
        text = f"there is no {options.target} in namespace {namespace_of(api, options)}{unread}"
        print(printable(text), file=sys.stderr)
        return EXIT_NOT_FOUND
    subject = for_reader(Rights(api), subject)
    print(as_json([subject], is_list=False) if options.output == "json" else as_text(subject))
    return EXIT_EXPLAINED


# --- what is explained ---


def find_subject(reading: Reading, namespace: str, target: str) -> ExplainedObject | None:
    """Return the explanation of ``[KIND/]NAME``; None if there is no such object."""
    kind, _, name = target.rpartition("/")
    if not name:
        raise ClusterError(f"{target} has no name after the kind; without an argument all pods that wait are listed")
    if not kind or kind.lower() in _POD:
        key = ObjectKey(namespace, name)
        pod = reading.reader.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        if isinstance(pod, Unread):
            raise lacks_view(pod)
        if pod is None and not kind:
            workload = _find_workload(reading, namespace, name)
            if workload is not None:
                return workload
        return _pod_subject(reading, key, pod)
    workload_kind = next((candidate for candidate in WORKLOADS if candidate.is_named(kind)), None)
    if workload_kind is None:
        custom_workload = _custom_workload(reading, namespace, name, kind)
        if custom_workload is not None:
            return custom_workload
        kind_names = ", ".join(("pod", *(candidate.name.lower() for candidate in WORKLOADS)))
        raise ClusterError(f"{kind} {name} owns no pod here, and is of none of the kinds {kind_names}")
    owner = reading.reader.get(f"{workload_kind.path(f'/namespaces/{namespace}')}/{name}")
    if isinstance(owner, Unread):
        raise lacks_view(owner)
    return None if owner is None else _workload_subject(reading, namespace, workload_kind, owner)


def _find_workload(reading: Reading, namespace: str, name: str) -> ExplainedObject | None:
    for kind in WORKLOADS:
        owner = reading.get(kind.plural, f"{kind.path(f'/namespaces/{namespace}')}/{name}")
        if owner is not None and not isinstance(owner, Unread):
            return _workload_subject(reading, namespace, kind, owner)
    return _custom_workload(reading, namespace, name)


def _custom_workload(reading: Reading, namespace: str, name: str, kind: str = "") -> ExplainedObject | None:
    """Explain an object of another project's kind, such as a JobSet, by the objects that name it as their owner."""
    workloads, pods = _dependents(reading, namespace)
    owners: dict[WorkloadKind, Any] = {}  # of each kind the UID: a Job may have thousands of pods
    for dependent in (*chain(*workloads.values()), *pods):
        for reference in dependent["metadata"].get("ownerReferences") or ():
            if reference.get("name") == name:
                owner_kind = WorkloadKind(str(reference.get("kind")), str(reference.get("apiVersion")))
                owners.setdefault(owner_kind, reference.get("uid"))
    for owner_kind, uid in owners.items():
        if not kind or owner_kind.is_named(kind):
            metadata = {"name": name, "namespace": namespace, "uid": uid}
            return _workload_subject(reading, namespace, owner_kind, {"metadata": metadata})
    return None


def _dependents(reading: Reading, namespace: str) -> tuple[dict[str, list[Object]], list[Object]]:
    """Return the workloads of a namespace by their kinds, and its pods: those that an owner may own."""
    scope = f"/namespaces/{namespace}"
    workloads = {kind.name: list(readable(reading.list(kind.plural, kind.path(scope)))) for kind in WORKLOADS}
    return workloads, list(reading.pods(f"/api/v1{scope}/pods"))


def _owned_by(uids: Collection[Any], objects: Iterable[Object]) -> list[Object]:
    return [
        candidate
        for candidate in objects
        if any(reference.get("uid") in uids for reference in candidate["metadata"].get("ownerReferences") or ())
    ]


def _workload_subject(reading: Reading, namespace: str, kind: WorkloadKind, owner: Object) -> ExplainedObject:
    """Explain the pod of a workload that is stuck longest; or why it has none."""
    key, uids = ObjectKey(namespace, owner["metadata"]["name"]), {owner["metadata"].get("uid")}
    workloads, pods = _dependents(reading, namespace)
    objects = [*chain(*workloads.values()), *pods]
    while new_uids := {owned["metadata"].get("uid") for owned in _owned_by(uids, objects)} - uids:
        uids |= new_uids
    pods = _owned_by(uids, pods)
    creators = [
        workload
        for kind_name, of_kind in workloads.items()
        for workload in of_kind
        if kind_name not in _INDIRECT and workload["metadata"].get("uid") in uids
    ] or [owner]
    failure = _creation_failure(creators, reading.failed_creations(f"/namespaces/{namespace}"), pods)
    waiting = [pod for pod in pods if _seems_stuck(reading, pod)]
    lacks_pods = any(_lacks_pods(creator, _owned_by({creator["metadata"].get("uid")}, pods)) for creator in creators)
    if not waiting and (not pods or (failure is not None and lacks_pods)):
        deployments, unread = reading.deployments(), tuple(reading.unread)
        facts = Facts(key, reading.now, deployments=deployments, system=reading.system, unreadable=unread)
        return ExplainedObject(kind.name, facts, explain_uncreated(owner, kind.name, facts, failure))
    oldest = min(waiting or pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    subject = _pod_subject(reading, key_of(oldest), oldest)
    assert subject is not None  # noqa: S101 - the pod exists
    count = f"{len(waiting)} of {len(pods)} pods wait" if waiting else f"none of {len(pods)} pods waits"
    explanation = replace(subject.explanation, details=(*subject.explanation.details, f"{kind.name} {key}: {count}"))
    return replace(subject, explanation=explanation)


def _seems_stuck(reading: Reading, pod: Object) -> bool:
    explanation = explain(reading.facts(key_of(pod), pod))
    return explanation is not None and explanation.is_stuck


def _lacks_pods(owner: Object, pods: Sequence[Object]) -> bool:
    """Return whether a workload has fewer pods than it should: its controller replaces those that have failed."""
    spec, desired = owner.get("spec") or {}, status_of(owner).get("desiredNumberScheduled", 1)
    count: Any = spec.get("replicas", spec.get("parallelism", desired))
    return len([pod for pod in pods if status_of(pod).get("phase") != "Failed"]) < int(count)


def _creation_failure(
    owners: Sequence[Object], events: Sequence[Object], pods: Sequence[Object]
) -> tuple[str, datetime | None] | None:
    """Return the last failure to create a pod of the workloads, and since when. ``events``: FailedCreate.

    A ReplicaSet reports it in a condition, which ends with the cause; of others there are only events. After a
    failure that is older than the newest of their ``pods`` the cause has ended.
    """
    for owner in owners:
        condition = condition_of(owner, "ReplicaFailure")
        if condition.get("status") == "True":
            return str(condition.get("message")), parse_time(condition.get("lastTransitionTime"))
    uids = {owner["metadata"].get("uid") for owner in owners}
    failures = [
        event
        for event in events
        if event["involvedObject"].get("uid") in uids and event["involvedObject"].get("kind") != "ReplicaSet"
    ]
    newest = max(filter(None, map(creation_time, pods)), default=None)
    if not failures or (newest is not None and time_of(failures[-1]) < newest):
        return None
    # Each try may be an event of its own: the name of the pod that was to be created differs.
    times = (parse_time(event.get("firstTimestamp")) or time_of(event) for event in failures)
    return str(failures[-1].get("message")), min(max(time, newest or time) for time in times)


def _pod_subject(reading: Reading, key: ObjectKey, pod: Object | None) -> ExplainedObject | None:
    facts = read_facts(reading, key, pod)
    explanation = explain(facts)
    return None if explanation is None else ExplainedObject("Pod", facts, explanation)


# --- all that is stuck ---


def stuck_subjects(reading: Reading, namespace: str) -> list[ExplainedObject]:
    """Return the pods that wait, and the workloads without pods, the longest first; empty ``namespace``: of all."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    pods = reading.pods(f"/api/v1{scope}/pods", fieldSelector="status.phase!=Succeeded")
    requests = {
        key_of(request): request for request in readable(reading.pages("bindrequests", requests_path(namespace)))
    }
    subjects = []
    for pod in pods:
        if _is_candidate(reading.info, pod):
            facts = reading.facts(key_of(pod), pod, requests.get(key_of(pod)))
            explanation = explain(facts)
            if explanation is not None and explanation.is_stuck:
                subjects.append(ExplainedObject("Pod", facts, explanation))
    subjects += _uncreated_subjects(reading, scope, pods)
    unread = tuple(reading.unread)
    subjects = [replace(subject, facts=replace(subject.facts, unreadable=unread)) for subject in subjects]
    return sorted(subjects, key=lambda subject: subject.explanation.since or reading.now)


def _uncreated_subjects(reading: Reading, scope: str, pods: Sequence[Object]) -> Iterator[ExplainedObject]:
    """Yield the workloads whose pods their controllers fail to create now. ``pods``: all that have not Succeeded."""
    by_owner: dict[Any, list[Object]] = {}
    for pod in pods:
        for reference in pod["metadata"].get("ownerReferences") or ():
            by_owner.setdefault(reference.get("uid"), []).append(pod)
    events = reading.failed_creations(scope)
    for kind in WORKLOADS:
        if kind.name in _INDIRECT:
            continue
        for owner in readable(reading.pages(kind.plural, kind.path(scope))):
            own_pods = by_owner.get(owner["metadata"].get("uid"), ())
            failure = _creation_failure([owner], events, own_pods)
            if failure is None or not _lacks_pods(owner, own_pods):
                continue
            facts = Facts(key_of(owner), reading.now, system=reading.system)
            explanation = explain_uncreated(owner, kind.name, facts, failure)
            if explanation.is_stuck:
                yield ExplainedObject(kind.name, facts, explanation)


def _is_candidate(info: ReleaseInfo | None, pod: Object) -> bool:
    """Return whether the list is about the pod: of a scheduler that Bowline serves, or with a misspelt one."""
    scheduler = scheduler_of(pod)
    return info is None or scheduler != names.DEFAULT_SCHEDULER or bool({"*", scheduler} & {*info.scheduler_names})
