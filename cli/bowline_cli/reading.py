"""What `bowline explain` reads of a cluster: of a release once, of each pod what may explain its state.

What the user may not read is noted by its name, and the facts are without it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from bowline.api import names
from bowline.api.duration import parse_duration
from bowline.api.gang import gang_of
from bowline.api.meta import Object, ObjectKey, ObjectRef, parse_time, status_of
from bowline.api.pod_volumes import pod_volumes
from bowline_cli.facts import (
    KINDS,
    Facts,
    GangFacts,
    ReleaseInfo,
    current_request,
    named_objects,
    node_of,
    scheduler_of,
)
from bowline_cli.kubeconfig import ClusterError
from bowline_cli.reader import Reader, Unread, acquired_at, leases_path, readable
from bowline_cli.rights import plural_of

_REQUESTS: Final = f"/apis/{names.API_VERSION}"


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
        """Read what all explanations need of the releases in the namespace ``system``."""
        reading = cls(reader, system, reader.api.now)
        # Anyone may write a Lease elsewhere.
        leases = reading.list(f"leases in {system}", leases_path(system), labelSelector=names.LEASE_LABEL)
        # Each release is named in the Lease of its reconcilers; before one has led, the usual name is tried.
        lease_names = [lease["metadata"]["name"] for lease in readable(leases)] or ["bowline-reconciler"]
        info_names = [f"{name.removesuffix('-reconciler')}-info" for name in lease_names]
        path = f"/api/v1/namespaces/{system}/configmaps"
        infos = [info_of(reading.get(f"configmap {name} in {system}", f"{path}/{name}")) for name in info_names]
        published = [info for info in infos if info is not None]
        # Of several, nothing says which one a pod is of.
        return replace(reading, leases=leases, info=published[0] if len(published) == 1 else None)

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
            raise lacks_view(pods, is_of_cluster="/namespaces/" not in path)
        return list(pods)

    def failed_creations(self, scope: str) -> Sequence[Object]:
        """Return the events about pods that could not be created, oldest first. ``scope``: of a path."""
        events = self.list("events", f"/api/v1{scope}/events", fieldSelector="reason=FailedCreate")
        return sorted(readable(events), key=time_of)

    def deployments(self) -> Any:
        """Return the release's Deployments, for the users who may read them."""
        return self.reader.deployments(self.system)

    def facts(self, key: ObjectKey, pod: Object | None, request: Object | None = None) -> Facts:
        """Return the facts about a pod that need no further read."""
        unread = tuple(self.unread)
        return Facts(
            key, self.now, pod, request, leases=self.leases, info=self.info, system=self.system, unreadable=unread
        )

    def _note(self, label: str, answer: Any) -> Any:
        if isinstance(answer, Unread):
            self.unread.setdefault(label, answer.reason)
        return answer


def lacks_view(unread: Unread, *, is_of_cluster: bool = False) -> ClusterError:
    """Return the error of a read without which nothing is explained."""
    place = "of all namespaces" if is_of_cluster else "in the namespace"
    return ClusterError(f"{unread.reason}; the role view {place} is enough")


def read_facts(reading: Reading, key: ObjectKey, pod: Object | None) -> Facts:
    """Read what explains the state of a pod; None if it does not exist."""
    request = reading.get("bindrequests", f"{requests_path(key.namespace)}/{key.name}")
    selector = f"involvedObject.name={key.name}"
    if pod is not None:  # not one that had its name
        selector += f",involvedObject.uid={pod['metadata'].get('uid')}"
    events = readable(reading.list("events", f"/api/v1/namespaces/{key.namespace}/events", fieldSelector=selector))
    facts = reading.facts(key, pod, None if isinstance(request, Unread) else request)
    refs = named_objects(current_request(facts), pod)
    phase = status_of(pod).get("phase") if pod is not None and (pod.get("spec") or {}).get("nodeName") else ""
    if pod is not None and phase == "Pending":
        refs += tuple(volume.ref for volume in pod_volumes(pod))  # a kubelet starts no pod without them
    if pod is not None and phase in ("Pending", "Running", "Unknown"):
        refs += (node_of(pod),)
    objects = {ref: _object(reading, ref) for ref in dict.fromkeys(refs)}
    about = {ref: _last_event_about(reading, ref) for ref in objects if ref.kind == "PersistentVolumeClaim"}
    object_events = {ref: event for ref, event in about.items() if event is not None}
    facts = replace(facts, events=sorted(events, key=time_of), objects=objects, object_events=object_events)
    if not any(acquired_at(lease, reading.now) for lease in readable(reading.leases)):
        facts = replace(facts, deployments=reading.deployments())
    if pod is None or (pod.get("spec") or {}).get("nodeName"):
        return facts
    return _with_scheduling(reading, facts, pod)


def _with_scheduling(reading: Reading, facts: Facts, pod: Object) -> Facts:
    """Add what only an unbound pod needs: its scheduler's Leases, its gang, devices of DRA drivers."""
    scheduler = scheduler_of(pod)
    # In the namespaces of components: a Lease of that name in a tenant's says nothing.
    namespaces = {"kube-system", reading.system, scheduler}
    leases = [reading.reader.get(f"{leases_path(namespace)}/{scheduler}") for namespace in namespaces]
    schedulers = [lease for lease in leases if lease is not None and not isinstance(lease, Unread)]
    facts = replace(facts, schedulers=schedulers)
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
    return GangFacts(ref, pod_group, members, reading.reader.pages(requests_path(ref.key.namespace)))


def _object(reading: Reading, ref: ObjectRef) -> Any:
    if ref.kind not in KINDS or not ref.key.name:
        return Unread("a kind that is not known here")
    root = f"/api/{ref.api_version}" if "/" not in ref.api_version else f"/apis/{ref.api_version}"
    namespace = f"/namespaces/{ref.key.namespace}" if ref.key.namespace else ""
    return reading.reader.get(f"{root}{namespace}/{plural_of(ref.kind.lower())}/{ref.key.name}")


def _last_event_about(reading: Reading, ref: ObjectRef) -> Object | None:
    """Return the last event about an object: of a claim, what its provisioner says."""
    selector = f"involvedObject.kind={ref.kind},involvedObject.name={ref.key.name}"
    path = f"/api/v1/namespaces/{ref.key.namespace}/events"
    return max(readable(reading.reader.list(path, fieldSelector=selector)), key=time_of, default=None)


def info_of(configuration: Any) -> ReleaseInfo | None:
    """Return what a release's ConfigMap publishes; None without one, or of a newer version."""
    if configuration is None or isinstance(configuration, Unread):
        return None
    try:
        content = json.loads((configuration.get("data") or {})["release.json"])
        schedulers = tuple(str(name) for name in content["schedulerNames"])
        docs = str(content.get("docsURL") or "").rstrip("/")
        binds_volumes = bool(content.get("volumeBinding", True))
        return ReleaseInfo(schedulers, parse_duration(str(content["repeatBackoff"])), docs, binds_volumes)
    except (ValueError, TypeError, LookupError):
        return None


def requests_path(namespace: str) -> str:
    """Return the path of a namespace's BindRequests; empty: of all namespaces."""
    return f"{_REQUESTS}{f'/namespaces/{namespace}' if namespace else ''}/{names.PLURAL}"


def time_of(event: Object) -> datetime:
    """Return when an event has last happened."""
    series = event.get("series") or {}
    text = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return parse_time(text) or datetime.min.replace(tzinfo=UTC)
