"""``bowline explain``: why a pod is not bound, since when, until when, and the command that helps; or all such pods.

Reads only. What the user may not read is named in one line, and the rest is explained without it. What every user
needs of the release, its chart publishes in a ConfigMap that all may read: the configuration itself may have
confidential arguments of plugins. ``diagnosis`` decides.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from bowline.api import names
from bowline.api.duration import parse_duration
from bowline.api.failed_decision import condition_of
from bowline.api.gang import gang_of
from bowline.api.meta import Object, ObjectKey, ObjectRef, key_of, parse_time, status_of
from bowline_cli.api import Api, ApiException, ClusterError
from bowline_cli.cluster import add_cluster_options, namespace_of, run_connected
from bowline_cli.diagnosis import explain
from bowline_cli.explained import ExplainedObject, as_json, as_table, as_text, for_reader, not_read
from bowline_cli.facts import (
    PLURALS,
    Facts,
    GangFacts,
    ReleaseInfo,
    creation_time,
    current_request,
    named_objects,
)
from bowline_cli.reader import Reader, Unread, acquired_at, leases_path, readable
from bowline_cli.rights import Rights
from bowline_cli.terminal import printable
from bowline_cli.undecided import explain_uncreated

EXIT_EXPLAINED, EXIT_NOT_FOUND = 0, 1
INFO: Final = "bowline-info"
_BOWLINE: Final = "app.kubernetes.io/name=bowline"
_REQUESTS: Final = f"/apis/{names.API_VERSION}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind whose objects own pods. ``path``: of its API; ``aliases``: as kubectl has them."""

    name: str
    path: str
    aliases: tuple[str, ...]

    def collection(self, namespace: str) -> str:
        """Return the path of a namespace's objects."""
        return f"{self.path}/namespaces/{namespace}/{self.aliases[1]}"


# In the order in which a name without a kind is looked up, after pods. Of aliases the second is the plural.
KINDS: Final = (
    Kind("Deployment", "/apis/apps/v1", ("deployment", "deployments", "deploy")),
    Kind("StatefulSet", "/apis/apps/v1", ("statefulset", "statefulsets", "sts")),
    Kind("Job", "/apis/batch/v1", ("job", "jobs")),
    Kind("DaemonSet", "/apis/apps/v1", ("daemonset", "daemonsets", "ds")),
    Kind("ReplicaSet", "/apis/apps/v1", ("replicaset", "replicasets", "rs")),
    Kind("CronJob", "/apis/batch/v1", ("cronjob", "cronjobs", "cj")),
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


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads what explanations need. ``unread``: what the user may not read, each once, by its name."""

    reader: Reader
    system: str
    now: datetime
    leases: Any = ()  # of reconcilers
    info: ReleaseInfo | None = None
    unread: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, reader: Reader, system: str) -> "Reading":
        """Read what all explanations need of the release in the namespace ``system``."""
        reading = cls(reader, system, reader.api.now)
        # Anyone may write a Lease elsewhere.
        leases = reading.list(f"leases in {system}", leases_path(system), labelSelector=names.LEASE_LABEL)
        path = f"/api/v1/namespaces/{system}/configmaps/{INFO}"
        info = info_of(reading.get(f"configmap {INFO} in {system}", path))
        return replace(reading, leases=leases, info=info)

    def list(self, label: str, path: str, **query: str | int) -> Any:
        """Return the objects of a list, or Unread, which is noted."""
        return self._note(label, self.reader.list(path, **query))

    def pages(self, label: str, path: str) -> Any:
        """Return the objects of a long list, or Unread, which is noted."""
        return self._note(label, self.reader.pages(path))

    def get(self, label: str, path: str) -> Any:
        """Return an object, None if it does not exist, or Unread, which is noted."""
        return self._note(label, self.reader.get(path))

    def pods(self, path: str, **query: str | int) -> Sequence[Object]:
        """Return pods. Raises ClusterError without the right: nothing can be explained then."""
        pods = self.reader.pages(path, **query)
        if isinstance(pods, Unread):
            raise _lacks_view(pods, is_of_cluster="/namespaces/" not in path)
        return list(pods)

    def requests(self, namespace: str, pod: str) -> Any:
        """Return the requests for a pod, whatever their names."""
        path = f"{_REQUESTS}/namespaces/{namespace}/{names.PLURAL}"
        try:
            return self.list("bindrequests", path, fieldSelector=f"spec.podName={pod}")
        except ApiException as error:
            if error.status != 400:
                raise
        # KAI-Scheduler's CRD does not select by that field.
        requests = self.list("bindrequests", path)
        return requests if isinstance(requests, Unread) else [r for r in requests if _pod_name(r) == pod]

    def _note(self, label: str, answer: Any) -> Any:
        if isinstance(answer, Unread):
            self.unread.setdefault(label, answer.reason)
        return answer


def _lacks_view(unread: Unread, *, is_of_cluster: bool = False) -> ClusterError:
    place = "of all namespaces" if is_of_cluster else "in the namespace"
    return ClusterError(f"{unread.reason}; the role view {place} is enough")


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
            raise _lacks_view(pod)
        if pod is None and not kind:
            workload = _find_workload(reading, namespace, name)
            if workload is not None:
                return workload
        subject = _pod_subject(reading, key, pod)
        return subject if subject is not None or kind else _uncreated_pod(reading, key)
    workload_kind = next((each for each in KINDS if kind.lower().partition(".")[0] in each.aliases), None)
    if workload_kind is None:
        kind_names = ", ".join(("pod", *(each.aliases[0] for each in KINDS)))
        raise ClusterError(f"{kind} is no kind that is known here; there are: {kind_names}")
    owner = reading.reader.get(f"{workload_kind.collection(namespace)}/{name}")
    if isinstance(owner, Unread):
        raise _lacks_view(owner)
    return None if owner is None else _workload_subject(reading, namespace, workload_kind, owner)


def _find_workload(reading: Reading, namespace: str, name: str) -> ExplainedObject | None:
    for kind in KINDS:
        owner = reading.get(f"{kind.aliases[1]}", f"{kind.collection(namespace)}/{name}")
        if owner is not None and not isinstance(owner, Unread):
            return _workload_subject(reading, namespace, kind, owner)
    return None


def _workload_subject(reading: Reading, namespace: str, kind: Kind, owner: Object) -> ExplainedObject:
    """Explain the pod of a workload that is stuck longest; or why it has none."""
    key, uid = ObjectKey(namespace, owner["metadata"]["name"]), owner["metadata"].get("uid")
    between = [
        *readable(reading.list("replicasets", f"/apis/apps/v1/namespaces/{namespace}/replicasets")),
        *readable(reading.list("jobs", f"/apis/batch/v1/namespaces/{namespace}/jobs")),
    ]
    uids = {uid}
    for each in between:
        if any(reference.get("uid") in uids for reference in each["metadata"].get("ownerReferences") or ()):
            uids.add(each["metadata"].get("uid"))
    pods = [
        pod
        for pod in reading.pods(f"/api/v1/namespaces/{namespace}/pods")
        if any(reference.get("uid") in uids for reference in pod["metadata"].get("ownerReferences") or ())
    ]
    owners = [owner, *(each for each in between if each["metadata"].get("uid") in uids)]
    failure = _failed_creation(reading, namespace, owners, pods)
    waiting = [pod for pod in pods if _seems_stuck(reading, pod)]
    if not waiting and (not pods or (failure is not None and len(pods) < _replica_count(owner))):
        facts = Facts(key, reading.now, deployments=_deployments(reading), system=reading.system)
        facts = _with_unread(facts, reading)
        return ExplainedObject(kind.name, facts, explain_uncreated(owner, kind.name, facts, failure))
    oldest = min(waiting or pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    subject = _pod_subject(reading, key_of(oldest), oldest)
    assert subject is not None  # noqa: S101 - the pod exists
    count = f"{len(waiting)} of {len(pods)} pods wait" if waiting else f"none of {len(pods)} pods waits"
    explanation = replace(subject.explanation, details=(*subject.explanation.details, f"{kind.name} {key}: {count}"))
    return replace(subject, explanation=explanation)


def _deployments(reading: Reading) -> Any:
    """Return the release's Deployments, for the users who may read them."""
    path = f"/apis/apps/v1/namespaces/{reading.system}/deployments"
    return reading.reader.list(path, labelSelector=_BOWLINE)


def _seems_stuck(reading: Reading, pod: Object) -> bool:
    explanation = explain(_facts(reading, key_of(pod), pod, ()))
    return explanation is not None and explanation.is_stuck


def _replica_count(owner: Object) -> int:
    spec, desired = owner.get("spec") or {}, status_of(owner).get("desiredNumberScheduled", 1)
    count: Any = spec.get("replicas", spec.get("parallelism", desired))
    return int(count)


def _failed_creation(
    reading: Reading, namespace: str, owners: Sequence[Object], pods: Sequence[Object]
) -> tuple[str, datetime | None] | None:
    """Return why the pods of workloads are not created now, and since when; None if no creation fails."""
    path = f"/api/v1/namespaces/{namespace}/events"
    events = readable(reading.list("events", path, fieldSelector="reason=FailedCreate"))
    return _creation_failure(owners, sorted(events, key=_time_of), pods)


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
    if not failures or (newest is not None and _time_of(failures[-1]) < newest):
        return None
    return str(failures[-1].get("message")), parse_time(failures[-1].get("firstTimestamp")) or _time_of(failures[-1])


def _uncreated_pod(reading: Reading, key: ObjectKey) -> ExplainedObject | None:
    """Explain a name that begins with a workload's: a pod that its controller fails to create has no name yet."""
    parts = key.name.split("-")
    for end in range(len(parts) - 1, 0, -1):
        workload = _find_workload(reading, key.namespace, "-".join(parts[:end]))
        if workload is not None:
            return workload
    return None


def _pod_subject(reading: Reading, key: ObjectKey, pod: Object | None) -> ExplainedObject | None:
    facts = read_facts(reading, key, pod)
    explanation = explain(facts)
    return None if explanation is None else ExplainedObject("Pod", facts, explanation)


def _facts(reading: Reading, key: ObjectKey, pod: Object | None, requests: Sequence[Object]) -> Facts:
    facts = Facts(key, reading.now, pod, requests, leases=reading.leases, info=reading.info, system=reading.system)
    return _with_unread(facts, reading)


def read_facts(reading: Reading, key: ObjectKey, pod: Object | None) -> Facts:
    """Read what explains the state of a pod; None if it does not exist."""
    facts = _facts(reading, key, pod, readable(reading.requests(key.namespace, key.name)))
    request = current_request(facts)
    selector = f"involvedObject.name={key.name}"
    if pod is not None:  # not one that had its name
        selector += f",involvedObject.uid={pod['metadata'].get('uid')}"
    events = reading.list("events", f"/api/v1/namespaces/{key.namespace}/events", fieldSelector=selector)
    objects = {ref: _object(reading, ref) for ref in dict.fromkeys(named_objects(request, pod))}
    about = {ref: _last_event_about(reading, ref) for ref in objects if ref.kind == "PersistentVolumeClaim"}
    object_events = {ref: event for ref, event in about.items() if event is not None}
    if not any(acquired_at(lease, reading.now) for lease in readable(reading.leases)):
        facts = replace(facts, deployments=_deployments(reading))
    if pod is not None and not (pod.get("spec") or {}).get("nodeName"):
        facts = _with_scheduling(reading, facts, pod)
    events = sorted(readable(events), key=_time_of)
    facts = replace(facts, events=events, objects=objects, object_events=object_events)
    return _with_unread(facts, reading)


def _with_scheduling(reading: Reading, facts: Facts, pod: Object) -> Facts:
    """Add what only an unbound pod needs: its scheduler's Leases, KAI's group, devices of DRA drivers."""
    scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
    # In the namespaces of components: a Lease of that name in a tenant's says nothing.
    named = (
        reading.reader.get(f"{leases_path(place)}/{scheduler}")
        for place in {"kube-system", reading.system, scheduler}
    )
    facts = replace(
        facts, schedulers=[lease for lease in named if lease is not None and not isinstance(lease, Unread)]
    )
    gang = gang_of(pod)
    if gang is not None:
        facts = replace(facts, gang=_read_gang(reading, gang))
    if (pod.get("spec") or {}).get("resourceClaims"):
        slices = reading.reader.list("/apis/resource.k8s.io/v1/resourceslices", limit=1)
        facts = replace(facts, slices=None if isinstance(slices, Unread) else len(slices))
    return facts


def _read_gang(reading: Reading, ref: ObjectRef) -> GangFacts:
    pod_group = _object(reading, ref)
    pods = reading.reader.pages(f"/api/v1/namespaces/{ref.key.namespace}/pods")
    members = pods if isinstance(pods, Unread) else [pod for pod in pods if gang_of(pod) == ref]
    requests = reading.reader.pages(f"{_REQUESTS}/namespaces/{ref.key.namespace}/{names.PLURAL}")
    return GangFacts(ref, pod_group, members, requests)


def _object(reading: Reading, ref: ObjectRef) -> Any:
    plural = PLURALS.get(ref.kind)
    if plural is None or not ref.key.name:
        return Unread("a kind that is not known here")
    root = f"/api/{ref.api_version}" if "/" not in ref.api_version else f"/apis/{ref.api_version}"
    namespace = f"/namespaces/{ref.key.namespace}" if ref.key.namespace else ""
    return reading.reader.get(f"{root}{namespace}/{plural}/{ref.key.name}")


def _last_event_about(reading: Reading, ref: ObjectRef) -> Object | None:
    """Return the last event about an object: of a claim, what its provisioner says."""
    selector = f"involvedObject.kind={ref.kind},involvedObject.name={ref.key.name}"
    path = f"/api/v1/namespaces/{ref.key.namespace}/events"
    return max(readable(reading.reader.list(path, fieldSelector=selector)), key=_time_of, default=None)


def _with_unread(facts: Facts, reading: Reading) -> Facts:
    return replace(facts, unreadable=tuple(reading.unread))


def info_of(configuration: Any) -> ReleaseInfo | None:
    """Return what a release's ConfigMap publishes; None without one, or of a newer version."""
    if configuration is None or isinstance(configuration, Unread):
        return None
    try:
        content = json.loads((configuration.get("data") or {})["release.json"])
        schedulers = tuple(str(name) for name in content["schedulerNames"])
        return ReleaseInfo(
            schedulers, parse_duration(str(content["repeatBackoff"])), str(content.get("docsURL") or "")
        )
    except (ValueError, TypeError, LookupError):
        return None


# --- all that is stuck ---


def stuck_subjects(reading: Reading, namespace: str) -> list[ExplainedObject]:
    """Return the pods that wait, and the workloads without pods, the longest first; empty ``namespace``: of all."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    pods = reading.pods(f"/api/v1{scope}/pods", fieldSelector="status.phase!=Succeeded")
    requests = readable(reading.pages("bindrequests", f"{_REQUESTS}{scope}/{names.PLURAL}"))
    by_pod: dict[ObjectKey, list[Object]] = {}
    for request in requests:
        key = ObjectKey(request["metadata"].get("namespace") or "", _pod_name(request))
        by_pod.setdefault(key, []).append(request)
    subjects = []
    for pod in pods:
        if _is_of(reading.info, pod):
            facts = _facts(reading, key_of(pod), pod, by_pod.get(key_of(pod), ()))
            explanation = explain(facts)
            if explanation is not None and explanation.is_stuck:
                subjects.append(ExplainedObject("Pod", facts, explanation))
    subjects += _uncreated_subjects(reading, scope, pods)
    subjects = [replace(subject, facts=_with_unread(subject.facts, reading)) for subject in subjects]
    return sorted(subjects, key=lambda subject: subject.explanation.since or reading.now)


def _uncreated_subjects(reading: Reading, scope: str, pods: Sequence[Object]) -> Iterator[ExplainedObject]:
    """Yield the workloads whose pods their controllers fail to create now. ``pods``: all that have not ended."""
    by_owner: dict[Any, list[Object]] = {}
    for pod in pods:
        for reference in pod["metadata"].get("ownerReferences") or ():
            by_owner.setdefault(reference.get("uid"), []).append(pod)
    path = f"/api/v1{scope}/events"
    events = sorted(readable(reading.list("events", path, fieldSelector="reason=FailedCreate")), key=_time_of)
    for kind in KINDS:
        if kind.name in _INDIRECT:
            continue
        for owner in readable(reading.pages(kind.aliases[1], f"{kind.path}{scope}/{kind.aliases[1]}")):
            own_pods = by_owner.get(owner["metadata"].get("uid"), ())
            failure = _creation_failure([owner], events, own_pods)
            if failure is None or len(own_pods) >= _replica_count(owner):
                continue
            facts = Facts(key_of(owner), reading.now, system=reading.system)
            explanation = explain_uncreated(owner, kind.name, facts, failure)
            if explanation.is_stuck:
                yield ExplainedObject(kind.name, facts, explanation)


def _is_of(info: ReleaseInfo | None, pod: Object) -> bool:
    """Return whether the list is about the pod: of a scheduler that Bowline serves, or with a misspelt one."""
    spec = pod.get("spec") or {}
    scheduler = spec.get("schedulerName") or "default-scheduler"
    return info is None or "*" in info.scheduler_names or scheduler != "default-scheduler"


# --- parts of objects ---


def _pod_name(request: Object) -> str:
    return str((request.get("spec") or {}).get("podName") or "")


def _time_of(event: Object) -> datetime:
    series = event.get("series") or {}
    text = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    moment = parse_time(text)
    return moment if moment is not None else datetime.min.replace(tzinfo=UTC)
