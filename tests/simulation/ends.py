"""Whether the end of a request is the world's own answer: the limit is reached, the pod or the node is gone.

Circumstances only grow, so a cause that has passed still explains an end that is reported later.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bowline.api import names
from bowline.api.bindrequest import gpu_groups_of
from bowline.api.meta import parse_time
from bowline.api.taints import is_of_health
from bowline.framework.config import Settings
from bowline.framework.reason import Reason
from bowline.plugins.gpu_sharing.reservation import reservation_name
from tests.simulation.objects import Object
from tests.simulation.server import EPOCH, Change, Server

ENDED = ("Succeeded", "Failed")
# Nothing in the world causes these.
_IMPOSSIBLE = (Reason.NOT_OURS, Reason.NO_PLUGIN, Reason.SUPERSEDED)
CHECK_TIMEOUT_S = 25
# The clocks of a process and of the world differ by the roundings of stored times.
_ROUNDED_S = 3.0


@dataclass(slots=True)
class Circumstances:
    """What has happened to one node. ``taints``: key, beginning and end of each."""

    gone_until: float = -math.inf
    taints: list[tuple[str, float, float]] = field(default_factory=list)


class Ends:
    """Observes nodes and requests. ``fail`` records a violation."""

    def __init__(self, server: Server, now: Callable[[], float], fail: Callable[[str, str], None]) -> None:
        self.settings = Settings()
        # Whether wall clocks are right, and nothing that was committed was taken back.
        self.is_time_true = self.is_past_true = True
        # Whether a request that has Succeeded keeps its finalizer for the release at its pod's end.
        self.holds = False
        self._server = server
        self._now = now
        self._fail = fail
        self._nodes: defaultdict[str, Circumstances] = defaultdict(Circumstances)
        self._limits: defaultdict[str, set[int | None]] = defaultdict(set)
        self._silent: set[str] = set()  # reservation pods whose agents have exceeded their time

    def on_node(self, change: Change) -> None:
        """Record from when until when a node was absent or tainted."""
        node, now = self._nodes[change.key[1]], self._now()
        before = _taints(change.old)
        after = _taints(change.new)
        node.gone_until = math.inf if change.new is None else min(node.gone_until, now)
        node.taints = [
            (key, began, now if ended == math.inf and key not in after else ended)
            for key, began, ended in node.taints
        ] + [(key, now, math.inf) for key in after - before]

    def on_reservation(self, change: Change) -> None:
        """Record that the agent of a reservation pod has exceeded its time."""
        if change.old is not None and self.is_silent(change.old):
            self._silent.add(change.key[1])

    def on_request(self, request: Object) -> None:
        """Record the limits that a request has had."""
        self._limits[request["metadata"]["uid"]].add(request["spec"].get("backoffLimit"))

    def check_attempts(self, request: Object, who: str) -> None:
        """No attempt follows the last one that is permitted."""
        limits, attempts = (
            self._limits[request["metadata"]["uid"]],
            (request.get("status") or {}).get("failedAttempts") or 0,
        )
        most = max(self.settings.binding.backoff_limit if limit is None else limit for limit in limits)
        if not has_ended(request) and attempts > most:
            self._fail("attempted after the limit", f"{who}: {attempts} of {limits}")

    def check(self, request: Object, attempts: int, pod: Object | None, bound_to: str | None, who: str) -> None:
        """Compare the reason of a failure with the world. ``attempts``: that had failed before the last one."""
        reason = next(reason for reason in Reason if reason.value == request["status"]["failure"]["reason"])
        node, created = self._nodes[request["spec"]["selectedNode"]], _created(request)
        limits = self._limits[request["metadata"]["uid"]]
        is_true = {
            **dict.fromkeys(_IMPOSSIBLE, False),
            Reason.BACKOFF_LIMIT_EXCEEDED: None in limits or attempts in limits,
            Reason.WAIT_TIMEOUT: not self.is_time_true
            or self._now() - created >= self._shortest_wait_s()
            or (request["status"]["failure"].get("plugin") == "gpu_sharing" and self._was_silent(request["spec"])),
        }
        if self.is_past_true:
            is_true |= {
                Reason.POD_GONE: pod is None or bool(pod["metadata"].get("deletionTimestamp")) or has_ended(pod),
                Reason.BOUND_ELSEWHERE: bound_to not in (None, request["spec"]["selectedNode"]),
                Reason.NODE_GONE: node.gone_until >= created,
                Reason.NODE_UNSCHEDULABLE: self._was_tainted(node, created),
            }
        if not is_true.get(reason, True):
            why = f"{attempts} attempts, limits {limits}, bound to {bound_to}, node {node}"
            self._fail(f"untrue {reason.value}", f"{who}: {request['status'].get('reason')}: {why}")

    def is_silent(self, reservation: Object) -> bool:
        """Return whether the agent of a reservation pod has exceeded its time: nothing says which device it holds."""
        time_s = self.settings.gpu_sharing.agent_timeout.total_seconds() - _ROUNDED_S
        annotations = reservation["metadata"].get("annotations") or {}
        return names.RESERVED_DEVICE not in annotations and self._now() - _created(reservation) >= time_s

    def _was_silent(self, spec: Object) -> bool:
        """Return whether an agent has exceeded its time, which began with its reservation, not with the request."""
        reservations = (
            pod for pod in self._server.objects("pods") if pod["metadata"]["namespace"] == names.RESERVATION_APP
        )
        silent = self._silent | {pod["metadata"]["name"] for pod in reservations if self.is_silent(pod)}
        node, groups = spec["selectedNode"], gpu_groups_of(spec)
        return any(name.startswith(reservation_name(node, group)) for name in silent for group in groups)

    def _shortest_wait_s(self) -> float:
        limits = self.settings.binding.wait_timeout, self.settings.gpu_sharing.agent_timeout
        return min(CHECK_TIMEOUT_S if self.holds else math.inf, *(x.total_seconds() for x in limits)) - _ROUNDED_S

    def _was_tainted(self, node: Circumstances, since: float) -> bool:
        grace = self.settings.binding.node_health_grace.total_seconds() - _ROUNDED_S
        return any(
            ended >= since and (not is_of_health({"key": key}) or min(ended, self._now()) - began >= grace)
            for key, began, ended in node.taints
        )


def uid_of_pod(request: Object) -> str:
    """Return the UID of the pod that a request is for; empty if nothing says it."""
    owners = [o["uid"] for o in request["metadata"].get("ownerReferences") or () if o["kind"] == "Pod"]
    return str(request["spec"].get("podUID") or (owners[0] if owners else ""))


def has_ended(stored: Object) -> bool:
    """Return whether a pod, or a request, has ended."""
    return (stored.get("status") or {}).get("phase") in ENDED


def condition(status: Mapping[str, object], kind: str) -> str:
    """Return the status of a condition; empty without it."""
    entries = status.get("conditions") or ()
    assert isinstance(entries, (list, tuple))
    return next((str(entry.get("status")) for entry in entries if entry.get("type") == kind), "")


def _created(stored: Object) -> float:
    created = parse_time(stored["metadata"]["creationTimestamp"])
    assert created is not None
    return (created - EPOCH).total_seconds()


def _taints(node: Object | None) -> set[str]:
    return {str(taint["key"]) for taint in ((node or {}).get("spec") or {}).get("taints") or ()}
