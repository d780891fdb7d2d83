"""The snapshot of a request and its surroundings, reduced to what decisions use.

Pure views of raw objects. ``Absent`` distinguishes an object that the API server reports as not found from one that
is only missing in a cache.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from shared.api.bindrequest import AllocationKind, BindRequest
from shared.api.meta import Object, ObjectKey, ObjectRef, ObjectUID, is_deleting, uid_of, version_of

# A wait does not expire before this process has been connected to the API server for so long: an outage or a restart
# is not the request's fault.
FRESH_CONTACT = timedelta(seconds=60)


class Absent(Enum):
    """Why an object is missing: not in the cache (which proves nothing), or not found by a live read."""

    NOT_IN_CACHE = "unseen"
    GONE = "gone"
    ELSEWHERE = "elsewhere"  # a request that exists, but is not in this shard


class Target(Enum):
    """What can be read live."""

    REQUEST = "request"
    POD = "pod"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class PodView:
    """The fields of a pod that decisions use."""

    uid: ObjectUID
    version: str
    node: str
    deleting: bool
    finished: bool
    gated: bool
    scheduler: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """The fields of a node that decisions use."""

    deleting: bool


@dataclass(frozen=True, slots=True)
class Times:
    """Durations, measured with this process's monotonic clock: setting the wall clock changes no decision."""

    known: timedelta = timedelta()  # since this process first saw the request
    waited: timedelta = timedelta()  # since the wait began, across restarts as far as the status reports it
    watched: timedelta = FRESH_CONTACT  # for how long a change of the awaited object would have been observed
    retry_in: timedelta = timedelta()  # no attempt before this


@dataclass(frozen=True, slots=True)
class Observed:
    """The input of a decision."""

    request: BindRequest | Absent
    pod: PodView | Absent = Absent.NOT_IN_CACHE
    node: NodeView | Absent = Absent.NOT_IN_CACHE
    older: ObjectKey | None = None  # the preceding request for the same pod: not ended, or not yet rolled back
    served: frozenset[AllocationKind] = frozenset()  # demands that enabled plugins fulfil
    times: Times = field(default_factory=Times)
    live: frozenset[Target] = frozenset()  # what was read live; the rest is from the caches
    plugin_errors: tuple[str, ...] = ()  # of plugins whose ``supported_allocations`` failed


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decisions depend on."""

    scheduler_names: Collection[str]
    wait_timeout: timedelta

    def schedules(self, name: str) -> bool:
        """Return whether a pod with that schedulerName is in scope."""
        return "*" in self.scheduler_names or name in self.scheduler_names


def pod_view(pod: Object) -> PodView:
    """Reduce a raw pod to the fields that decisions use."""
    spec = pod.get("spec") or {}
    return PodView(
        uid=uid_of(pod),
        version=version_of(pod),
        node=spec.get("nodeName") or "",
        deleting=is_deleting(pod),
        finished=(pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"),
        gated=bool(spec.get("schedulingGates")),
        scheduler=spec.get("schedulerName") or "default-scheduler",
    )


def node_view(node: Object) -> NodeView:
    """Reduce a raw node to the fields that decisions use."""
    return NodeView(deleting=is_deleting(node))


def pod_ref(request: BindRequest, pod: PodView) -> ObjectRef:
    """Return a reference to the request's pod, with the version in the snapshot."""
    return ObjectRef(
        "v1", "Pod", request.pod_key, pod.uid, version_of({"metadata": {"resourceVersion": pod.version}})
    )
