"""What must hold: at every write of a reconciler, and when everything has come to rest.

A violation is a sentence; the first of each kind is kept with its time. Kinds are named, so that a failing run can be
reduced without turning into another failure.
"""

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import orjson

from bowline.api import names
from bowline.api.bindrequest import BOUND, PREPARED
from bowline.api.meta import ObjectKey
from bowline.framework.reason import Suggestion
from bowline.kube.calls import Request
from bowline.kube.client import ClientOptions
from bowline.kube.errors import ApiError
from bowline.kube.lease import StorageRestoredError
from bowline_reconciler.term.wiring import Components
from tests.simulation.ends import ENDED, Ends, condition, has_ended, uid_of_pod
from tests.simulation.loop import Process
from tests.simulation.network import REQUEST_TIMEOUT_S
from tests.simulation.objects import Object, resource_of
from tests.simulation.reconciler import ReconcilerProcess
from tests.simulation.server import Answer, Change, Server
from tests.simulation.world import NAMESPACE, REQUESTS, RESERVATIONS, World, node_of_volume

_UID, _VERSION = frozenset({"uid"}), frozenset({"resourceVersion"})
_BOTH, _NONE = _UID | _VERSION, frozenset[str]()
# Every write of a reconciler, and what it must carry. A creation changes nothing.
GUARDS: Mapping[tuple[str, str], frozenset[str]] = {
    ("POST", "pods"): _NONE,
    ("POST", "configmaps"): _NONE,
    ("POST", "resourceclaims"): _NONE,
    ("POST", "pods/binding"): _UID,
    ("PATCH", "bindrequests"): _VERSION,
    ("PATCH", "bindrequests/status"): _VERSION,
    ("PATCH", "pods"): _BOTH,
    ("PATCH", "reservation pods"): _UID,  # the latest join counts
    ("PATCH", "pods/status"): _BOTH,
    ("PATCH", "persistentvolumes"): _BOTH,
    ("PATCH", "persistentvolumeclaims"): _BOTH,
    ("PUT", "resourceclaims/status"): _BOTH,
    ("PATCH", "resourceclaims"): _VERSION,
    ("PATCH", "resourceclaims/status"): _VERSION,
    ("POST", "bindchecks"): _NONE,
    ("DELETE", "bindchecks"): _UID,  # its answer changes nothing
    ("DELETE", "bindrequests"): _BOTH,
    ("DELETE", "pods"): _BOTH,
    ("DELETE", "configmaps"): _BOTH,
    ("DELETE", "resourceclaims"): _BOTH,
}
_REQUESTS = f"{REQUESTS}/namespaces/{NAMESPACE}/bindrequests"
# The writes of a process that does not lead, whatever the client itself takes for one.
_UNFENCED = re.compile(r"/(leases|events|selfsubjectreviews)\b")
# Log lines of level ERROR that are no defect.
_EXPECTED_ERRORS = ("leadership lost", "exiting: nothing that was read before is valid")
# Within this time after a cache shows a request as withdrawn, its Binding may still be sent.
_SENT_S = 2.0
# A request that has been gone for longer binds nothing: a watch that is silent ends, and so does each call.
_UNNOTICED_S = ClientOptions().watch_silence_s + REQUEST_TIMEOUT_S
# Within these times after the end of a pod what plugins hold for it is released.
_TOLD_S, _RESYNCED_S = 60.0, 660.0
# The longest attempt: one hanging call of another plugin.
_ATTEMPT_S = 70.0
# Entries that end with their request's object, or with the term.
_MAY_REMAIN = ("gpu_sharing withdrawn",)


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str
    at: float


@dataclass(slots=True)
class Past:
    """What was committed: a restored etcd takes it back."""

    node_of: dict[str, str] = field(default_factory=dict)  # of every pod that was ever bound, by UID
    ended: dict[str, tuple[str, float]] = field(default_factory=dict)  # requests that reported their end, by UID
    undone: dict[str, float] = field(default_factory=dict)  # requests that reported RolledBack=True
    prepared_for: dict[str, str] = field(default_factory=dict)  # by pod UID
    requests: dict[str, Object] = field(default_factory=dict)  # every request ever, by UID, as last stored
    # The nodes that each request has named, by UID: another project's CRD lets clients change it.
    nodes: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    gone: dict[str, float] = field(default_factory=dict)  # when each request was deleted, by UID
    read: dict[tuple[str, str], Object] = field(default_factory=dict)  # by process and path, as last read
    gang_of: dict[str, str] = field(default_factory=dict)  # by pod UID
    # Until when each pod was asked for, by gang.
    gangs: defaultdict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    left: dict[str, float] = field(default_factory=dict)  # when each pod has ended or gone, by UID
    granted: dict[str, dict[str, str]] = field(default_factory=dict)  # devices of each bound pod, by UID and group
    # When others have ended or deleted a reservation, by node and group.
    lost_reservations: dict[tuple[Any, Any], float] = field(default_factory=dict)


class Checks(logging.Handler):
    """Observes the model's commits, the reconcilers' requests, and the log."""

    def __init__(self, server: Server, world: World, now: Callable[[], float]) -> None:
        super().__init__(logging.ERROR)
        self.violations: dict[str, Violation] = {}
        self.counts: Counter[str] = Counter()
        self.writes_by_request: Counter[str] = Counter()
        self._server = server
        self._world = world
        self._now = now
        self._past = Past()
        # Since when each process has known that a request is withdrawn, by its UID.
        self._withdrawn: dict[tuple[str, str], float] = {}
        self._calls: Counter[tuple[str, str, int]] = Counter()
        # Annotations and labels of the last Binding that was sent for each pod, by UID.
        self._contents: dict[str, Object] = {}
        # Whether every write had a reply, and no process died: what is written in the background is not lost.
        self.is_undisturbed = False
        # Whether a write may have been executed after its process has given it up.
        self.is_late: Callable[[], bool] = lambda: False
        self.ends = Ends(server, now, self.fail)
        server.observers.append(self._on_change)

    def backup(self) -> Past:
        """Copy what is known of the commits so far."""
        return deepcopy(self._past)

    def restore(self, past: Past) -> None:
        """Etcd was restored: what was committed since the copy has never been."""
        self._past = past
        self.ends.is_past_true = False

    def fail(self, kind: str, text: str) -> None:
        self.violations.setdefault(kind, Violation(kind, text, self._now()))

    # --- the log ---

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text in _EXPECTED_ERRORS:
            return
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ExceptionGroup) and error.subgroup(StorageRestoredError):
            return  # the process ends on purpose
        if isinstance(error, ApiError) and "denied" in error.message:
            return  # the weather's; the request ends
        fields = {
            k: v
            for k, v in vars(record).items()
            if k in ("bindRequest", "plugin", "point", "worker", "task", "why", "error", "object")
        }
        self.fail(f"log {text}", f"{text} {fields} {type(error).__name__ if error else ''} {error or ''}")

    # --- each request of a reconciler ---

    def on_send(self, process: Process, request: Request) -> None:
        """A process that has lost the Lease to another one sends no write, whatever it was stopped at."""
        lease = self._server.find("leases", "bowline-reconciler", "bowline")
        holder = str((lease or {"spec": {}})["spec"].get("holderIdentity") or "")
        assert isinstance(process, ReconcilerProcess)
        is_fenced = request.method != "GET" and not _UNFENCED.search(request.path)
        if is_fenced and holder and not holder.startswith(f"{process.identity}_"):
            self.fail("sent without the Lease", f"{process} {request.method} {request.path}; {holder} leads")
        if is_fenced and process.parts is not None:
            self._check_states(process, process.parts, request)
        if request.path.endswith("/binding"):
            self._check_current(process, request)

    def _check_current(self, process: Process, request: Request) -> None:
        """No Binding is sent for a request that the process has read as replaced."""
        annotations = orjson.loads(request.body or b"{}")["metadata"].get("annotations") or {}
        bind_request = self._past.requests.get(annotations.get(names.PREPARED_FOR, ""))
        if bind_request is None:
            return
        assert isinstance(process, ReconcilerProcess)
        metadata = bind_request["metadata"]
        path = f"{_REQUESTS}/{metadata['name']}"
        read = self._past.read.get((process.name, path))
        key = ObjectKey(NAMESPACE, metadata["name"])
        cached = process.parts.informers.request_cache.get(key) if process.parts is not None else None
        versions = [] if cached is None else [(cached.uid, cached.resource_version)]
        versions += [] if read is None else [(read["metadata"]["uid"], read["metadata"]["resourceVersion"])]
        uid, version = metadata["uid"], metadata["resourceVersion"]
        if any(other != uid and int(other_version) > int(version) for other, other_version in versions):
            self.fail("bound although replaced", f"{process}: {path} {uid[:8]}, known are {versions}")

    def _check_states(self, process: Process, parts: Components, request: Request) -> None:
        """What is known to be withdrawn is not bound."""
        for key, state in parts.memory.states.items():
            running = state.attempt.running
            if running is None:
                continue
            cached_request = parts.informers.request_cache.get(key)
            if cached_request is None or not cached_request.deleting:
                continue
            since = self._withdrawn.setdefault((process.name, state.uid), self._now())
            # The UID: another pod of that name may be bound meanwhile.
            if self._now() > since + _SENT_S and _bound_uid(request) == running.request.pod_uid:
                self.fail("bound although withdrawn", f"{process}: {key}, known as withdrawn at {since:.3f}")

    def on_request(self, process: Process, request: Request, answer: Answer | None, fault: str) -> None:
        self._check_rate(process, request)
        if request.method == "GET" and answer is not None and answer.code == 200 and not fault:
            path = request.path.partition("?")[0]
            if path.startswith(f"{_REQUESTS}/"):
                self._past.read[process.name, path] = answer.body
        if request.method == "GET" or answer is None:
            return
        path = request.path.partition("?")[0]
        if "/leases" in path or "/events" in path or "selfsubjectreviews" in path:
            return
        # Finished requests are deleted minutes after their end.
        self.counts["writes"] += request.method != "DELETE" or "/bindrequests/" not in path
        body = orjson.loads(request.body) if request.body else {}
        present_guards = body.get("preconditions" if request.method == "DELETE" else "metadata") or {}
        guards = _guards_of(request.method, path, body)
        if guards is None:
            self.fail("unknown write", f"{process} {request.method} {path} {body}")
        elif missing := {guard for guard in guards if not present_guards.get(guard)}:
            self.fail("no precondition", f"{process} {request.method} {path} {body}: no {missing}")
        if path.endswith("/binding"):
            self._contents[body["metadata"]["uid"]] = body["metadata"]

    def _check_rate(self, process: Process, request: Request) -> None:
        """No hot loop: a request causes few calls, whatever fails."""
        _, separator, name = request.path.partition("?")[0].partition("/bindrequests/")
        if not separator:
            return
        window = (process.name, name.partition("/")[0], int(self._now() / 10))
        self._calls[window] += 1
        if self._calls[window] > 60:
            self.fail("hot loop", f"{process}: more than 6 calls a second about request {window[1]}")

    # --- each commit ---

    def _on_change(self, change: Change) -> None:
        plural = change.kind.plural
        if plural == "pods" and change.key[0] == RESERVATIONS:
            self.ends.on_reservation(change)
        if plural == "pods" and change.old is not None and (change.new is None or has_ended(change.new)):
            self._past.left.setdefault(change.old["metadata"]["uid"], self._now())
            if not change.user.startswith("reconciler"):
                group = (change.old["metadata"].get("labels") or {}).get(names.LABEL_GPU_GROUP)
                self._past.lost_reservations[change.old["spec"].get("nodeName"), group] = self._now()
        if plural == "pods" and change.subresource == "binding" and change.new is not None:
            self._on_bound(change)
        elif plural == "pods" and change.subresource == "status" and change.user.startswith("reconciler"):
            self._on_pod_status(change)
        elif plural == "bindrequests":
            self._on_bind_request(change)
        elif plural == "nodes":
            self.ends.on_node(change)
        elif plural == "pods" and change.key[0] == RESERVATIONS and change.user.startswith("reconciler"):
            if change.new is None or change.new["metadata"].get("deletionTimestamp"):
                self._on_release(change)
        elif (
            plural in ("resourceclaims", "configmaps")
            and change.user.startswith("reconciler")
            and change.old is not None
        ):
            self._on_taken(change)
        elif plural == "events" and change.old is None and change.new is not None:
            self._on_event(change.new)

    def _on_bound(self, change: Change) -> None:
        pod, old = change.new, change.old
        assert pod is not None
        assert old is not None
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        self._past.node_of[uid] = node
        self.counts["bound"] += 1
        request_uid = (change.body["metadata"].get("annotations") or {}).get(names.PREPARED_FOR, "")
        self._past.prepared_for[uid] = request_uid
        request = self._past.requests.get(request_uid)
        who = f"pod {pod['metadata']['name']} ({uid[:8]}) to {node} for request {request_uid[:8]}"
        if request_uid in self._past.ended:
            phase, at = self._past.ended[request_uid]
            self.fail("bound after the end", f"{who}, which reported {phase} at {at:.3f}")
        if self._now() > self._past.gone.get(request_uid, math.inf) + _UNNOTICED_S:
            self.fail("bound long after its deletion", f"{who}, deleted at {self._past.gone[request_uid]:.3f}")
        if request_uid in self._past.undone:
            self.fail("bound after the rollback", f"{who}, rolled back at {self._past.undone[request_uid]:.3f}")
        if request is None:
            self.fail("bound for nothing", f"{who}: no such request")
            return
        spec = request["spec"]
        # A Binding in flight may land after a change of the node.
        if node not in self._past.nodes[request_uid] or spec.get("podUID", uid) not in ("", uid):
            self.fail("bound wrongly", f"{who}: asked {spec}")
        self._check_prepared(pod, spec, who)
        self._check_capacity(pod, who)
        self._check_gang(pod, who)

    def _on_pod_status(self, change: Change) -> None:
        """A reconciler reports on the pod what is true of it."""
        if change.new is None or change.old is None:
            return
        status, before, node = change.new["status"], change.old["status"], change.new["spec"].get("nodeName")
        who = f"pod {change.key[1]} on {node} by {change.user}"
        kind = names.CONDITION_POD_BOUND
        if condition(status, kind) != condition(before, kind) and condition(status, kind) != str(bool(node)):
            self.fail("untrue condition PodBound", f"{who}: {condition(status, kind)}")
        nominated = status.get("nominatedNodeName")
        asked = {request["spec"]["selectedNode"] for request in self._past.requests.values()
                 if uid_of_pod(request) == change.new["metadata"]["uid"]}  # fmt: skip
        if nominated and nominated != before.get("nominatedNodeName") and (node or nominated not in asked):
            self.fail("untrue nomination", f"{who}: {nominated}, asked for are {sorted(asked)}")

    def _check_capacity(self, pod: Object, who: str) -> None:
        """With its new pod a node has no more CPU requested than it has, unless a write came later than decided."""
        node = self._server.find("nodes", pod["spec"]["nodeName"])
        if node is None or self.is_late():
            return
        on_node = [
            other
            for other in self._server.objects("pods")
            if other["spec"].get("nodeName") == pod["spec"]["nodeName"] and not has_ended(other)
        ]
        requested = sum(_cpu(other) for other in on_node)
        if 1000 * requested > int(node["status"]["allocatable"]["cpu"].removesuffix("m")):
            self.fail("node is overcommitted", f"{who}: {requested} CPUs of {node['status']['allocatable']}")

    def _check_prepared(self, pod: Object, spec: Object, who: str) -> None:
        """At the moment of the Binding everything that the pod needs is in place."""
        if spec.get("receivedResourceType") == "Fraction":
            self._check_share(pod, spec, who)
        uid = pod["metadata"]["uid"]
        for claim in self._claims_of(pod):
            self._check_claim(claim, uid, who)
        if spec.get("extendedResourceClaimAllocation"):
            name = (pod["status"].get("extendedResourceClaimStatus") or {}).get("resourceClaimName", "")
            extended_claim = self._server.find("resourceclaims", name, NAMESPACE) if name else None
            self._check_claim(extended_claim or {"metadata": {"name": name}}, uid, who)
        for volume in pod["spec"].get("volumes") or ():
            self._check_volume(pod, (volume.get("persistentVolumeClaim") or {}).get("claimName"), who)

    def _check_claim(self, claim: Object, pod_uid: str, who: str) -> None:
        status = claim.get("status") or {}
        consumers = {entry["uid"] for entry in status.get("reservedFor") or ()}
        if not status.get("allocation") or pod_uid not in consumers:
            self.fail("bound without claim", f"{who}: claim {claim['metadata']['name']!r} {status}")

    def _check_volume(self, pod: Object, claim_name: str | None, who: str) -> None:
        if not claim_name:
            return
        claim = self._server.find("persistentvolumeclaims", claim_name, NAMESPACE)
        if claim is None or names.BIND_COMPLETED not in (claim["metadata"].get("annotations") or {}):
            self.fail("bound without volume", f"{who}: PVC {claim_name}")
            return
        volume = self._server.find("persistentvolumes", claim["spec"]["volumeName"])
        if volume is not None and node_of_volume(volume) != pod["spec"]["nodeName"]:
            self.fail("bound to another node than its volume", f"{who}: {claim['spec']['volumeName']}")

    def _check_share(self, pod: Object, spec: Object, who: str) -> None:
        node, prefix = pod["spec"]["nodeName"], pod["metadata"]["annotations"].get(names.SHARED_GPU_CONFIGMAP)
        configmap = self._server.find("configmaps", f"{prefix}-0", NAMESPACE)
        labels = pod["metadata"].get("labels") or {}
        for group in spec["selectedGPUGroups"]:
            if labels.get(names.LABEL_GPU_GROUP) != group and f"{names.LABEL_GPU_GROUP}/{group}" not in labels:
                self.fail("bound without label", f"{who}: group {group}, labels {labels}")
        if configmap is None:
            self.fail("bound without ConfigMap", f"{who}: {prefix}-0 does not exist")
            return
        owners = {owner["uid"] for owner in configmap["metadata"].get("ownerReferences") or ()}
        if pod["metadata"]["uid"] not in owners:
            self.fail("bound with a foreign ConfigMap", f"{who}: {prefix}-0 is of {owners}")
        devices = (configmap.get("data") or {}).get(names.VISIBLE_DEVICES, "").split(",")
        self._past.granted[pod["metadata"]["uid"]] = dict(zip(spec["selectedGPUGroups"], devices, strict=False))
        for device in devices:
            users = [
                user["metadata"]["name"]
                for user in self._server.objects("pods")
                if user["spec"].get("nodeName") == node
                and user["status"].get("phase") not in ENDED
                and device in self._past.granted.get(user["metadata"]["uid"], {}).values()
            ]
            # Each takes a half.
            if len(users) > 2:
                self.fail("device given away twice", f"{who}: {device} on {node} is used by {users}")
        held = [self._device_held(node, group) for group in spec["selectedGPUGroups"]]
        # A reservation that others take away during the attempt is noticed after the bind, and made again.
        for group, device in zip(spec["selectedGPUGroups"], held, strict=True):
            lost_at = self._past.lost_reservations.get((node, group), -math.inf)
            if device is None and self._now() - lost_at < _ATTEMPT_S:
                return
        if devices != held:
            self.fail("bound with a wrong device", f"{who}: ConfigMap shows {devices}, reserved are {held}")

    def _device_held(self, node: str, group: str) -> str | None:
        for pod in self._server.objects("pods"):
            key = pod["metadata"]
            if (
                key["namespace"] == RESERVATIONS
                and (key.get("labels") or {}).get(names.LABEL_GPU_GROUP) == group
                and pod["spec"].get("nodeName") == node
                and pod["status"].get("phase") not in ENDED
            ):
                return self._world.device_of(key["uid"])
        return None

    def _check_gang(self, pod: Object, who: str) -> None:
        gang = str((pod["metadata"].get("annotations") or {}).get(names.POD_GROUP_NAME) or "")
        group = self._server.find("podgroups", gang, NAMESPACE) if gang else None
        if group is None:
            return
        minimum, now = group["spec"]["minMember"], self._now()
        # There is no transaction: a member may be withdrawn while the Bindings of the others are on their way.
        members = [
            uid for uid, asked_until in self._past.gangs[gang].items() if now < asked_until + REQUEST_TIMEOUT_S
        ]
        if len(members) < minimum:
            self.fail("gang bound below its minimum", f"{who}: {len(members)} of {minimum} are asked for or bound")

    def _note_member(self, request: Object, is_asked_for: bool) -> None:
        """Record until when each pod of a gang was asked for."""
        pod_uid, pod = uid_of_pod(request), self._pod_of(request)
        gang = (pod["metadata"].get("annotations") or {}).get(names.POD_GROUP_NAME) if pod is not None else None
        if gang is not None:
            self._past.gang_of[pod_uid] = gang
        if pod_uid in self._past.gang_of:
            is_asked_for = is_asked_for or pod_uid in self._past.node_of
            until = math.inf if is_asked_for else self._now()
            self._past.gangs[self._past.gang_of[pod_uid]][pod_uid] = until

    def _claims_of(self, pod: Object) -> list[Object]:
        claims = []
        statuses = {e["name"]: e for e in pod["status"].get("resourceClaimStatuses") or ()}
        for entry in pod["spec"].get("resourceClaims") or ():
            name = entry.get("resourceClaimName") or statuses.get(entry["name"], {}).get("resourceClaimName", "")
            claim = self._server.find("resourceclaims", name, NAMESPACE)
            claims.append(claim or {"metadata": {"name": name}})
        return claims

    def _on_bind_request(self, change: Change) -> None:
        old, new = change.old, change.new
        bind_request = new or old
        assert bind_request is not None
        uid, name = bind_request["metadata"]["uid"], bind_request["metadata"]["name"]
        if new is not None:
            self._past.requests[uid] = new
            self._past.nodes[uid].add(new["spec"]["selectedNode"])
            self.ends.on_request(new)
        else:
            self._past.gone[uid] = self._now()
        self._note_member(bind_request, new is not None and (new.get("status") or {}).get("phase") != "Failed")
        ours = change.user.startswith("reconciler")
        if ours:
            self.writes_by_request[uid] += 1
        status, before = (bind_request.get("status") or {}), ((old or {}).get("status") or {})
        who = f"request {name} ({uid[:8]}) by {change.user}"
        phase = status.get("phase")
        if not ours or new is None:
            if ours and new is None and phase not in ENDED:
                self._check_abandoned(bind_request, who, "finalizer dropped")
            return
        if before.get("phase") in ENDED and phase != before["phase"]:
            self.fail("phase changed after the end", f"{who}: {before['phase']} to {phase}")
        attempts, attempts_before = status.get("failedAttempts") or 0, before.get("failedAttempts") or 0
        if attempts < attempts_before:
            self.fail("attempts decreased", f"{who}: {attempts_before} to {attempts}")
        if attempts > attempts_before + 1 and phase != "Failed":
            self.fail("attempts jumped", f"{who}: {attempts_before} to {attempts}")
        self.ends.check_attempts(new, who)
        if phase in ENDED and before.get("phase") != phase:
            self._on_end(new, phase, who)
            if phase == "Failed":
                self.ends.check(new, attempts_before, self._pod_of(new), self._past.node_of.get(uid_of_pod(new)), who)
        self._check_conditions(new, before, who)
        if condition(status, "RolledBack") == "True" and condition(before, "RolledBack") != "True":
            self._past.undone[uid] = self._now()
            self._check_abandoned(new, who, "RolledBack=True")

    def _check_conditions(self, request: Object, before: Object, who: str) -> None:
        """Bound=True and Prepared=True are reported only for a pod that is bound with what its Binding contains."""
        uid, pod_uid, status = request["metadata"]["uid"], uid_of_pod(request), request.get("status") or {}
        on = self._past.node_of.get(pod_uid)
        if condition(status, BOUND) == "True" and on != self._decided_node(request):
            self.fail("untrue condition Bound", f"{who}: pod {pod_uid[:8]} is on {on}")
        if condition(status, PREPARED) != "True" or condition(before, PREPARED) == "True":
            return
        if on is None or self._past.prepared_for.get(pod_uid) != uid:
            self.fail("untrue condition Prepared", f"{who}: {self._past.prepared_for.get(pod_uid)}")
        pod = self._pod_of(request)
        content = self._contents.get(pod_uid)
        if pod is None or content is None:
            return
        for kind in ("annotations", "labels"):
            present = pod["metadata"].get(kind) or {}
            lost = [key for key, value in (content.get(kind) or {}).items() if present.get(key) != value]
            if lost:
                self.fail("prepared without its Binding's content", f"{who}: no {kind} {lost}")

    def _decided_node(self, request: Object) -> Any:
        """Return the node of the decision that was carried out.

        Another project's CRD lets a client change it after the bind. Then the status has the former one, and the pod
        the record of its Binding.
        """
        is_changed = (request["metadata"].get("generation") or 1) > 1
        if is_changed and self._past.prepared_for.get(uid_of_pod(request)) == request["metadata"]["uid"]:
            return (request.get("status") or {}).get("nodeName")
        return request["spec"]["selectedNode"]

    def _on_end(self, request: Object, phase: str, who: str) -> None:
        """A request reports its end: it must be true."""
        uid, pod_uid, node = request["metadata"]["uid"], uid_of_pod(request), self._decided_node(request)
        self._past.ended[uid] = (phase, self._now())
        self.counts[phase] += 1
        if phase == "Failed":
            self.counts[str(request["status"].get("reason") or phase).partition(":")[0]] += 1
        on = self._past.node_of.get(pod_uid)
        if phase == "Succeeded" and on != node:
            self.fail("untrue Succeeded", f"{who}: pod {pod_uid[:8]} is on {on}, not {node}")
        if phase == "Failed" and on == node and self._past.prepared_for.get(pod_uid) == uid:
            # A pod that was deleted after its Binding is not found any more.
            exists = any(pod["metadata"]["uid"] == pod_uid for pod in self._server.objects("pods"))
            if exists:
                self.fail("Failed although bound", f"{who}: {request['status'].get('reason')}")
        is_held = phase == "Succeeded" and self.ends.holds
        if names.FINALIZER in (request["metadata"].get("finalizers") or ()) and not is_held:
            self.fail("ended with finalizer", f"{who}: {phase}")
        if phase == "Failed":
            self._check_abandoned(request, who, "Failed")

    def _check_abandoned(self, request: Object, who: str, claim: str) -> None:
        """A request that is abandoned leaves nothing on its unbound pod."""
        pod_uid = uid_of_pod(request)
        if pod_uid in self._past.node_of:
            return
        left = [*self.left_of(pod_uid), *self._selected_for(request)]
        if left:
            self.fail("left behind", f"{who}: {claim}, but left are {left}")

    def _selected_for(self, request: Object) -> list[str]:
        """Claims whose provisioning a request has asked for, and nobody has answered."""
        answered = {(v["spec"].get("claimRef") or {}).get("uid") for v in self._server.objects("persistentvolumes")}
        return [
            f"selected node of claim {claim['metadata']['name']}"
            for claim in self._server.objects("persistentvolumeclaims")
            if (annotations := claim["metadata"].get("annotations") or {}).get(names.SELECTED_NODE)
            and annotations.get(names.PREPARED_FOR) == request["metadata"]["uid"]
            and claim["metadata"]["uid"] not in answered
        ]

    def left_of(self, pod_uid: str) -> list[str]:
        """What exists of attempts for an unbound pod."""
        left = []
        for pod in self._server.objects("pods"):
            if pod["metadata"]["uid"] != pod_uid or pod["spec"].get("nodeName"):
                continue
            labels = pod["metadata"].get("labels") or {}
            left += [f"label {key}" for key in labels if key.startswith(names.LABEL_GPU_GROUP)]
            left += ["extended claim status"] if pod["status"].get("extendedResourceClaimStatus") else []
            for thing in self._server.objects("configmaps"):
                is_deleting = bool(thing["metadata"].get("deletionTimestamp"))
                if pod_uid in _owners(thing) and not is_deleting:
                    left.append(f"ConfigMap {thing['metadata']['name']}")
            for claim in self._server.objects("resourceclaims"):
                status = claim.get("status") or {}
                name = claim["metadata"]["name"]
                if pod_uid in {entry["uid"] for entry in status.get("reservedFor") or ()}:
                    left.append(f"reservedFor of claim {name}")
                annotations = claim["metadata"].get("annotations") or {}
                if annotations.get(names.EXTENDED_RESOURCE_CLAIM) == "true" and pod_uid in _owners(claim):
                    left.append(f"extended resource claim {name}")
        return left

    def _on_release(self, change: Change) -> None:
        """A reconciler deletes a reservation: no running pod may use its device."""
        pod = change.old
        assert pod is not None
        group, node = (pod["metadata"].get("labels") or {}).get(names.LABEL_GPU_GROUP), pod["spec"].get("nodeName")
        reported = (pod["metadata"].get("annotations") or {}).get(names.RESERVED_DEVICE)
        if pod["status"].get("phase") in ENDED or self.ends.is_silent(pod):
            return
        for user in self._server.objects("pods"):
            # Whatever its labels say: the device that its ConfigMap shows is the one that it uses.
            device = self._past.granted.get(user["metadata"]["uid"], {}).get(str(group))
            # A reservation of another device is one of a recovery that has failed.
            if user["spec"].get("nodeName") != node or device is None or device != reported:
                continue
            if user["status"].get("phase") not in ENDED and self._device_held(node, str(group)) is None:
                who = f"{change.user}: {group} on {node}, used by {user['metadata']['name']}"
                self.fail("device released in use", who)

    def _on_taken(self, change: Change) -> None:
        """A reconciler changes a claim or deletes a ConfigMap: no running pod may lose it."""
        old, new = change.old, change.new
        assert old is not None
        is_gone = new is None or bool(new["metadata"].get("deletionTimestamp"))
        before = {e["uid"] for e in (old.get("status") or {}).get("reservedFor") or ()}
        after = (
            {e["uid"] for e in ((new or {}).get("status") or {}).get("reservedFor") or ()} if not is_gone else set()
        )
        losers = before - after
        if is_gone and change.kind.plural == "configmaps":
            losers |= {owner["uid"] for owner in old["metadata"].get("ownerReferences") or ()}
        for pod in self._server.objects("pods"):
            if (
                pod["metadata"]["uid"] in losers
                and pod["spec"].get("nodeName")
                and pod["status"].get("phase") not in ENDED
            ):
                what = f"{change.kind.kind} {change.key[1]}"
                self.fail("taken from a bound pod", f"{change.user}: {what} of pod {pod['metadata']['name']}")

    def _on_event(self, event: Object) -> None:
        about = event.get("regarding") or {}
        if event.get("reason") != "Bound" or about.get("kind") != "Pod":
            return
        node = str(event.get("note", "")).removeprefix("bound to node ")
        if self._past.node_of.get(about.get("uid", "")) != node:
            self.fail("untrue event Bound", f"{about} {event.get('note')}")

    # --- at rest ---

    def at_rest(self, processes: Sequence[ReconcilerProcess]) -> None:
        """Everything has come to rest: nothing may be unfinished or left, in the cluster or in memory."""
        # All are checked, whichever waits.
        waiting = [r for r in self._server.objects("bindrequests") if self._is_waiting_at_rest(r)]
        for pod in self._server.objects("pods"):
            uid, key = pod["metadata"]["uid"], pod["metadata"]
            if key["namespace"] != NAMESPACE or pod["spec"].get("nodeName"):
                continue
            unfinished_requests = [
                request
                for request in self._server.objects("bindrequests")
                if uid_of_pod(request) == uid and (request.get("status") or {}).get("phase") not in ENDED
            ]
            nominated = (pod.get("status") or {}).get("nominatedNodeName")
            if nominated and not unfinished_requests and self.is_undisturbed and not self._keeps(uid, nominated):
                self.fail("nomination at rest", f"pod {key['name']} ({uid[:8]}): {nominated}")
            left = self.left_of(uid)
            if left and not unfinished_requests:
                self.fail("left at rest", f"pod {key['name']} ({uid[:8]}): {left}")
        self._reservations_at_rest()
        for process in processes:
            if process.failure is not None:
                self.fail("process failed", f"{process}: {process.failure!r}")
            if process.is_alive and not waiting:
                self._check_memory(process)

    def _keeps(self, pod_uid: str, node: str) -> bool:
        """Return whether a failed request suggests that its pod is bound to the same node later."""
        return any(
            uid_of_pod(request) == pod_uid
            and request["spec"]["selectedNode"] == node
            and (request.get("status") or {}).get("suggestion") == Suggestion.RETRY_SAME_NODE.value
            for request in self._past.requests.values()
        )

    def _is_waiting_at_rest(self, request: Object) -> bool:
        """Check an end; returns whether the request waits for what is really absent."""
        key, status = request["metadata"], request.get("status") or {}
        phase, reason = status.get("phase"), str(status.get("reason") or "")
        if phase == "Succeeded" and self.ends.holds and key.get("finalizers"):
            # Nobody is told of the end by force of a pod that does not own its request, or whose request is deleting.
            is_told = key.get("ownerReferences") and not key.get("deletionTimestamp")
            if self._now() - self._past.left.get(uid_of_pod(request), math.inf) > (
                _TOLD_S if is_told else _RESYNCED_S
            ):
                self.fail("not released", f"{key['name']} {key['uid'][:8]}")
        elif key.get("deletionTimestamp"):
            self.fail("deleted request remains", f"{key['name']} {key.get('finalizers')} {reason}")
        elif phase in ENDED:
            if key.get("finalizers"):
                self.fail("finalizer remains", f"{key['name']} {phase} {key['finalizers']}")
        elif self._may_wait(request):
            return True
        else:
            why = f"{key['name']} ({key['uid'][:8]}) {phase} {reason!r} {status.get('conditions')}"
            self.fail("never ends", why)
        return False

    def _check_memory(self, process: ReconcilerProcess) -> None:
        """Of requests that have ended nothing may be remembered, except that they have."""
        sizes = process.sizes()
        left = {name: size for name, size in sizes.items() if size and name not in _MAY_REMAIN}
        if left:
            self.fail(f"memory left: {', '.join(left)}", f"{process}: {left}")

    def _pod_of(self, request: Object) -> Object | None:
        uid = uid_of_pod(request)
        return next((pod for pod in self._server.objects("pods") if pod["metadata"]["uid"] == uid), None)

    def _may_wait(self, request: Object) -> bool:
        """Whether the request waits for what is really absent: nothing of it is provided any more at rest."""
        pod = self._pod_of(request)
        return pod is not None and bool(pod["spec"].get("schedulingGates"))

    def _reservations_at_rest(self) -> None:
        """A reservation without users is released; a user's device is reserved."""
        users = defaultdict(list)
        for pod in self._server.objects("pods"):
            if pod["metadata"]["namespace"] == RESERVATIONS or pod["status"].get("phase") in ENDED:
                continue
            for key, value in (pod["metadata"].get("labels") or {}).items():
                if key == names.LABEL_GPU_GROUP or key.startswith(f"{names.LABEL_GPU_GROUP}/"):
                    users[value].append(pod)
        for pod in self._server.objects("pods"):
            if pod["metadata"]["namespace"] != RESERVATIONS:
                continue
            group = pod["metadata"]["labels"][names.LABEL_GPU_GROUP]
            on_node = [u for u in users[group] if u["spec"].get("nodeName") in (None, pod["spec"].get("nodeName"))]
            if not on_node:
                self.fail("reservation without users", f"{pod['metadata']['name']} of {group} {pod['status']}")
        for pod in self._server.objects("pods"):
            node, key = pod["spec"].get("nodeName"), pod["metadata"]
            if pod["status"].get("phase") in ENDED or key.get("deletionTimestamp"):
                continue
            for group in self._past.granted.get(key["uid"], ()):
                if self._device_held(node, group) is None:
                    self.fail(
                        "device in use is not reserved",
                        f"pod {key['name']} group {group} on {node}, labels {key.get('labels')}",
                    )

    def check_quiet(self, before: Mapping[str, int], minutes: float) -> None:
        """No livelock: at rest nothing is written."""
        writes = self.counts["writes"] - before.get("writes", 0)
        if writes > 2 * minutes:
            self.fail("writes at rest", f"{writes} in {minutes:g} minutes")

    def check_total(self, limit: int) -> None:
        """No storm of writes on one request."""
        for uid, writes in self.writes_by_request.items():
            if writes > limit:
                self.fail("too many writes", f"request {uid[:8]}: {writes} writes")


def _bound_uid(request: Request) -> str:
    """Return the UID of the pod that a request binds; empty for any other request."""
    if request.body is None or not request.path.endswith("/binding"):
        return ""
    return str(orjson.loads(request.body)["metadata"]["uid"])


def _cpu(pod: Object) -> int:
    requests = ((c.get("resources") or {}).get("requests") or {} for c in pod["spec"]["containers"])
    return sum(int(amounts.get("cpu") or 0) for amounts in requests if str(amounts.get("cpu") or 0).isdigit())


def _owners(stored: Object) -> set[str]:
    return {owner["uid"] for owner in stored["metadata"].get("ownerReferences") or ()}


def _guards_of(method: str, path: str, body: Any) -> frozenset[str] | None:
    """Return what a write must carry, so that it changes only what it was decided on; None for an unknown one."""
    resource = resource_of(path)
    if (method, resource) == ("PATCH", "pods") and f"/namespaces/{RESERVATIONS}/" in path:
        resource = "reservation pods"
    if (method, resource) == ("PATCH", "pods/status") and condition(
        body["status"], names.CONDITION_POD_BOUND
    ) == "True":
        return _UID  # stays true
    return GUARDS.get((method, resource))
