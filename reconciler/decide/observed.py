"""What is seen of a request and its surroundings, reduced to what decisions rest on.

Pure views over raw objects. Sight is honest about its limits: ``Absent`` says whether the API server itself denied an
object or it merely is not in a store.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from shared.api.bindrequest import BindRequest, Demand
from shared.api.meta import Object, ObjectKey, ObjectRef, ObjectUID, is_deleting, uid_of, version_of

# A wait is not ended before this process has been in contact with the API server for so long: an outage or a restart
# of ours is no fault of the request's.
FRESH_CONTACT = timedelta(seconds=60)


class Absent(Enum):
    """Why an object is not there: not in the store (proves nothing), or the API server itself said so."""

    UNSEEN = "unseen"
    GONE = "gone"
    ELSEWHERE = "elsewhere"  # a request that is there, and another shard's or none's


class Target(Enum):
    """What the API server can be asked for."""

    REQUEST = "request"
    POD = "pod"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class PodView:
    """What decisions need of a pod."""

    uid: ObjectUID
    version: str
    node: str
    deleting: bool
    finished: bool
    gated: bool
    scheduler: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """What decisions need of a node."""

    deleting: bool


@dataclass(frozen=True, slots=True)
class Times:
    """How long things have lasted, by this process's monotonic clock: a clock that is set changes no decision."""

    known: timedelta = timedelta()  # since this process first saw the request
    waited: timedelta = timedelta()  # since the wait began, across restarts as far as the status reports it
    watched: timedelta = FRESH_CONTACT  # since when what is waited for would have been seen
    retry_in: timedelta = timedelta()  # no attempt sooner than this


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a decision rests on."""

    request: BindRequest | Absent
    pod: PodView | Absent = Absent.UNSEEN
    node: NodeView | Absent = Absent.UNSEEN
    older: ObjectKey | None = None  # a request for the same pod that goes first: unfinished, or not undone yet
    served: frozenset[Demand] = frozenset()  # demands that enabled plugins fulfil
    times: Times = field(default_factory=Times)
    live: frozenset[Target] = frozenset()  # what the API server itself said just now; the rest is the stores' word
    serves_errors: tuple[str, ...] = ()  # of plugins that could not be asked what they serve


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decisions depend on."""

    scheduler_names: Collection[str]
    wait_timeout: timedelta

    def schedules(self, name: str) -> bool:
        """Return whether a pod of that scheduler is ours."""
        return "*" in self.scheduler_names or name in self.scheduler_names


def pod_view(pod: Object) -> PodView:
    """Reduce a raw pod to what decisions need."""
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
    """Reduce a raw node to what decisions need."""
    return NodeView(deleting=is_deleting(node))


def pod_ref(request: BindRequest, pod: PodView) -> ObjectRef:
    """Return the reference to the request's pod as it was seen."""
    return ObjectRef(
        "v1", "Pod", request.pod_key, pod.uid, version_of({"metadata": {"resourceVersion": pod.version}})
    )
