"""The cluster of a scheduler's conformance run: Bowline as the binder, the program under test, a stage for a case.

Nothing here knows how the program works: it is started, killed, and judged by the objects and the audit log of the
API server.
"""

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from bowline.api import names
from bowline.conformance.case import (
    BINDING,
    CONTRACT,
    NODE_LABEL,
    OTHER_NODE,
    POLICIES,
    POLICY_BINDINGS,
    QUOTA,
    SENTENCES,
    Case,
    denial,
)
from bowline.kube.resources import BINDREQUESTS, NODES, PODS
from bowline.localcluster.api import USER_AGENT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.pair import CHART, Pair, PairOptions
from bowline.localcluster.process import Launch
from bowline.localcluster.spec import ClusterSpec
from bowline.testing.builders import bind_request, pod

T = TypeVar("T")

# The schedulerName of pods that the program under test must leave alone.
OTHER: Final = "another-scheduler"
# Admission never depends on itself there.
_UNREVIEWED: Final = "kube-system"
_POLL_S = 0.05
_LOG_LINES = 15
_KEPT = "example.com/kept"
# The API server's status for a change of what is immutable.
_INVALID = 422
# A decision that fails is retried once, soon.
_BINDING = {"backoffLimit": 1, "backoff": {"base": "50ms"}, "inFlightTimeout": "2s"}
# A leader that gets no CPU keeps its Lease: a new term would repeat attempts.
_LEASE = {"leaseDuration": "60s", "renewDeadline": "50s"}


class BrokenRuleError(AssertionError):
    """The program has broken a rule of the contract; ``rule`` is its name. ``end``: what was observed then."""

    def __init__(self, rule: str, why: str, end: str) -> None:
        self.rule = rule
        (sentence,) = (text for text, rules in SENTENCES.items() if rule in rules)
        super().__init__(f'{rule}: {why}\nobserved at the end: {end}\n{CONTRACT}: "{sentence}"')


@dataclass(frozen=True, slots=True)
class SchedulerCluster:
    """A control plane with two nodes of eight GPUs each, and Bowline's pair as the binder."""

    cluster: Cluster
    pair: Pair

    @classmethod
    @contextmanager
    def start(
        cls, scheduler_names: Sequence[str], kubernetes: str | None = None, chart: Path = CHART
    ) -> Iterator["SchedulerCluster"]:
        """Start it for pods of these schedulers; it ends with the block. Raises LocalClusterError."""
        values: dict[str, object] = {
            "config.schedulerNames": list(dict.fromkeys((*scheduler_names, OTHER))),
            "config.binding": _BINDING,
            "config.leaderElection": _LEASE,
        }
        helm = find_helm()
        with Cluster.start(ClusterSpec(kubernetes=kubernetes, audit="Request")) as cluster:
            for node in cluster.make_nodes(2):
                labels = {NODE_LABEL: node, "kubernetes.io/hostname": f"{node}.example.com"}
                cluster.api.patch(NODES.path("", node), {"metadata": {"labels": labels}})
            cluster.make_runtime_class()
            pair = Pair.install(cluster, helm, PairOptions(chart=chart, set_values=values))
            pair.start()
            yield cls(cluster, pair)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The running program under test: one process or several. ``name`` is the schedulerName of its pods."""

    cluster: Cluster
    name: str
    launches: Sequence[Launch]
    pod_labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def started(cls, cluster: Cluster, argv: Sequence[str], name: str) -> Iterator["Scheduler"]:
        """Run a command, with an administrator's access in KUBECONFIG, until the block ends."""
        environ = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PYTHONUNBUFFERED": "1"}
        launch = Launch("scheduler", argv, cluster.layout.logs / "scheduler.log", Path.cwd(), environ)
        cluster.run_process(launch)
        try:
            yield cls(cluster, name, [launch])
        finally:
            cluster.process(launch.name).stop()

    def kill(self) -> None:
        """End it without notice, as a node that fails does."""
        for launch in self.launches:
            self.cluster.process(launch.name).kill()

    def start(self) -> None:
        """Start it again."""
        for launch in self.launches:
            self.cluster.run_process(launch)

    def failure(self) -> str:
        """Return how it has ended by itself; empty while it runs."""
        for process in map(self.cluster.process, (launch.name for launch in self.launches)):
            if not process.alive:
                return f"the scheduler has ended with status {process.returncode}"
        return ""

    def log(self) -> str:
        """Return the last lines that it has written."""
        return "\n".join(self.cluster.process(launch.name).tail(_LOG_LINES) for launch in self.launches)


@dataclass(frozen=True, slots=True)
class SchedulerStage:
    """A namespace for one case. ``limit_s``: how long the program may take for what it must do."""

    cluster: Cluster
    pair: Pair
    scheduler: Scheduler
    limit_s: float
    namespace: str = field(default_factory=lambda: f"case-{uuid.uuid4().hex[:8]}")
    pods: dict[str, str] = field(default_factory=dict)  # that the case has created and not deleted, with their UIDs

    def run(self, case: Case["SchedulerStage"]) -> None:
        """Run a case, then what holds in each. Raises BrokenRuleError."""
        try:
            case.run(self)
        except LocalApiError:
            self._check_pods()  # without its pods a case cannot go on
            raise
        self._check_pods()
        self._check_writes()
        keys = product(("delete", "deletecollection"), (names.PLURAL, "pods"))
        deletes = [entry for verb, kind in keys for entry in self._entries(verb, kind)]
        without = [entry for entry in deletes if _is_of_program(entry) and not _preconditions(entry).get("uid")]
        deleted = ", ".join(sorted({entry["objectRef"].get("name", "all") for entry in without}))
        why = f"deleted without the UID as a precondition: {deleted}; the next pod or decision has that name"
        self.require("deletes-by-uid", not without, why)

    def _check_writes(self) -> None:
        """What only the binder writes: bindings, the status and finalizers of requests."""
        kinds = (("create", "pods"), ("create", "bindings"), ("patch", names.PLURAL), ("update", names.PLURAL))
        entries = [entry for verb, kind in kinds for entry in self._entries(verb, kind) if _is_of_program(entry)]
        for entry in entries:
            reference, code = entry["objectRef"], entry["responseStatus"]["code"]
            kind = reference.get("subresource") or reference["resource"]
            self.require("binds-no-pods", kind not in ("binding", "bindings"), f"binds {reference.get('name')}")
            is_change = kind == "status" or code == _INVALID or _changes_finalizers(entry)
            what = f"{entry['verb']} of the {kind} of request {reference.get('name')} ({code}): another decision is"
            why = f"{what} another request; status and finalizers are the binder's"
            self.require("changes-no-request", not (is_change and reference["resource"] == names.PLURAL), why)

    def _check_pods(self) -> None:
        stored = self.stored_pods()
        lost = [name for name, uid in self.pods.items() if stored.get(name) != uid]
        why = f"deleted, though no controller owns it, or nothing suggests it: pod {', '.join(lost)}"
        self.require("deletes-no-pods", not lost, why)

    # --- actions of users and administrators ---

    def submit(
        self,
        name: str,
        gpus: int,
        node: str = "",
        *,
        scheduler: str = "",
        annotations: Mapping[str, str] | None = None,
        owner: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> str:
        """Create a pod for the program under test, or for another one; return its UID. ``spec``: further fields.

        ``annotations``: ask for a share in place of whole devices. ``owner``: its controller.
        """
        selector = {"nodeSelector": {NODE_LABEL: node}} if node else {}
        scheduler_name = scheduler or self.scheduler.name
        body = pod(name, self.namespace, schedulerName=scheduler_name, tolerations=[], **selector)
        body["metadata"]["labels"] = dict(self.scheduler.pod_labels)
        if owner is not None:
            body["metadata"]["ownerReferences"] = [owner]
        if annotations is not None:
            body["metadata"]["annotations"] = dict(annotations)
        else:
            body["spec"]["containers"][0]["resources"] = {"limits": {names.RESOURCE_GPU: str(gpus)}}
        body["spec"] |= spec
        self.pods[name] = str(self.cluster.api.post(PODS.path(self.namespace), body)["metadata"]["uid"])
        return self.pods[name]

    @contextmanager
    def unreviewed_pods(self, annotations: Sequence[Mapping[str, str]]) -> Iterator[None]:
        """Create pods with these annotations where no admission reviews them, until the block ends."""
        paths = []
        try:
            for number, values in enumerate(annotations):
                name = f"{self.namespace}-{number}"
                body = pod(name, _UNREVIEWED, schedulerName=self.scheduler.name, tolerations=[])
                body["metadata"] |= {"annotations": dict(values), "labels": dict(self.scheduler.pod_labels)}
                self.cluster.api.post(PODS.path(_UNREVIEWED), body)
                paths.append(PODS.path(_UNREVIEWED, name))
            yield
        finally:
            for path in paths:
                self.cluster.api.delete(f"{path}?gracePeriodSeconds=0")

    def change_pod(self, name: str, change: Mapping[str, Any], subresource: str = "") -> None:
        """Change a pod, as its users do, or in its status, as its kubelet does."""
        self.cluster.api.patch(PODS.path(self.namespace, name, subresource), change)

    def delete_pods(self, *pods: str, grace_period_s: int = 0) -> None:
        """Delete pods, as their users do."""
        for name in pods:
            self.cluster.api.delete(f"{PODS.path(self.namespace, name)}?gracePeriodSeconds={grace_period_s}")
            del self.pods[name]

    @contextmanager
    def kept(self, plural: str, name: str) -> Iterator[None]:
        """Let a pod or request stay until the block ends, also when it is deleted."""
        path = (PODS if plural == "pods" else BINDREQUESTS).path(self.namespace, name)
        self._set_finalizers(path, _KEPT)
        try:
            yield
        finally:
            self._set_finalizers(path)

    def _set_finalizers(self, path: str, *own: str) -> None:
        """Set the case's own ones; those of others stay."""
        stored = self.cluster.api.get(path)["metadata"].get("finalizers") or ()
        finalizers = [*(text for text in stored if text != _KEPT), *own]
        self.cluster.api.patch(path, {"metadata": {"finalizers": finalizers}})

    @contextmanager
    def changed_node(self, node: str, part: str = "spec", **values: object) -> Iterator[None]:
        """Let a node have these values in its spec, or status, until the block ends."""
        path = NODES.path("", node, "" if part == "spec" else part)
        before = self.cluster.api.get(path)[part]
        self.cluster.api.patch(path, {part: values})
        try:
            yield
        finally:
            self.cluster.api.patch(path, {part: {name: before.get(name) for name in values}})

    @contextmanager
    def other_namespace(self) -> Iterator["SchedulerStage"]:
        """Another namespace, with pods of its own until the block ends."""
        other = replace(self, namespace=f"{self.namespace}-other", pods={})
        self.cluster.make_namespace(other.namespace)
        try:
            yield other
        finally:
            other.clean_up()

    def create_request(self, request: Mapping[str, Any]) -> None:
        """Create a BindRequest, as another scheduler does."""
        self.cluster.api.post(BINDREQUESTS.path(self.namespace), dict(request))

    @contextmanager
    def denied_requests(self, name: str) -> Iterator[None]:
        """Deny each request for the pod until the block ends, as a quota or a policy of the cluster does."""
        resource = {"apiGroups": [names.GROUP], "apiVersions": [names.VERSION], "resources": [names.PLURAL]}
        rule = denial(self.namespace, resource, f"object.spec.podName != '{name}'")
        probe = bind_request(name, OTHER_NODE, self.namespace, "uid")
        with self._denied(rule, partial(self._is_denied, BINDREQUESTS.path(self.namespace), probe, QUOTA)):
            yield

    @contextmanager
    def failing_binds(self, name: str, message: str = QUOTA, node: str = "") -> Iterator[None]:
        """Let each attempt for the pod fail until the block ends: for a quota it is retried, else it is final.

        ``node``: only there.
        """
        others = f"object.metadata.name != '{name}'" + (f" || object.target.name != '{node}'" if node else "")
        rule = denial(self.namespace, BINDING, others, message)
        # The pod need not exist: admission precedes the search for it.
        path = PODS.path(self.namespace, name, "binding")
        target = {"apiVersion": "v1", "kind": "Node", "name": node or OTHER_NODE}
        probe = {"metadata": {"name": name}, "target": target}
        with self._denied(rule, partial(self._is_denied, path, probe, message)):
            yield

    @contextmanager
    def _denied(self, rule: tuple[dict[str, Any], dict[str, Any]], is_denied: Callable[[], bool]) -> Iterator[None]:
        """Store a policy and its binding until the block ends, and wait until each change is in force."""
        policy, binding = rule
        self.cluster.api.post(POLICIES, policy)
        try:
            self.cluster.api.post(POLICY_BINDINGS, binding)
            self.wait("the policy denies", is_denied)
            yield
        finally:
            self.cluster.api.delete(f"{POLICY_BINDINGS}/{self.namespace}")
            self.cluster.api.delete(f"{POLICIES}/{self.namespace}")
        self.wait("the policy denies no more", lambda: not is_denied())

    @contextmanager
    def stopped_reconciler(self) -> Iterator[None]:
        """Let requests stay Pending until the block ends."""
        if not self.pair.reconcilers[0].stop():
            raise TimeoutError("the reconciler did not stop")
        try:
            yield
        finally:
            self.pair.launch_reconciler().wait_ready()

    def clean_up(self) -> None:
        """Delete pods and requests, and wait until nothing of them is left: the next case needs their devices."""
        paths = (PODS.path(self.namespace), BINDREQUESTS.path(self.namespace))
        for path in paths:
            self.cluster.api.delete(f"{path}?gracePeriodSeconds=0")
        self.wait("the pods and requests are deleted", lambda: not any(map(self._items, paths)))

    # --- observations ---

    def pod(self, name: str) -> dict[str, Any]:
        """Return the stored pod."""
        stored: dict[str, Any] = self.cluster.api.get(PODS.path(self.namespace, name))
        return stored

    def stored_pods(self) -> dict[str, str]:
        """Return the UIDs of the present pods, by name."""
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in self._items(PODS.path(self.namespace))}

    def requests(self, name: str) -> list[dict[str, Any]]:
        """Return the present requests for the pod."""
        return [item for item in self._items(BINDREQUESTS.path(self.namespace)) if item["spec"]["podName"] == name]

    def warnings(self, name: str) -> list[str]:
        """Return the texts of the warnings that `kubectl describe` shows of the pod: by its UID."""
        events = self._items(f"/api/v1/namespaces/{self.namespace}/events")
        own = [event for event in events if event["involvedObject"].get("uid") == self.pods[name]]
        return [str(event.get("message")) for event in own if event["type"] == "Warning" and event.get("message")]

    def creations(self) -> Counter[tuple[str, int]]:
        """Return the requests that were created or denied in the namespace, by name and HTTP status."""
        entries = self._entries("create")
        return Counter((entry["objectRef"].get("name", ""), entry["responseStatus"]["code"]) for entry in entries)

    def deletes(self, uid: str) -> list[datetime]:
        """Return when the request with the UID was deleted."""
        entries = (entry for entry in self._entries("delete") if _preconditions(entry).get("uid") == uid)
        return [datetime.fromisoformat(entry["requestReceivedTimestamp"]) for entry in entries]

    def denials(self) -> int:
        """Return the number of requests that were denied in the namespace."""
        return sum(number for (_, code), number in self.creations().items() if code >= 400)

    def observe(self, seconds: float) -> None:
        """Let the program go on for a time. Raises BrokenRuleError if it ends."""
        deadline = time.monotonic() + seconds
        self.until("survives", "the time of the observation passes", lambda: time.monotonic() > deadline)

    def decided(self, rule: str, name: str) -> dict[str, Any]:
        """Wait for a request for the pod."""
        return self.until(rule, f"a request for pod {name}", lambda: next(iter(self.requests(name)), None))

    def runs(self, rule: str, name: str) -> str:
        """Wait until the pod is bound; return its node."""
        return str(self.until(rule, f"pod {name} is bound", lambda: self.pod(name)["spec"].get("nodeName")))

    def until(self, rule: str, description: str, condition: Callable[[], T | None]) -> T:
        """Wait for what the rule requires. Raises BrokenRuleError after the limit, or when the program has ended."""
        deadline = time.monotonic() + self.limit_s
        while (result := condition()) is None or result is False:
            ended = self.scheduler.failure()
            if ended or time.monotonic() > deadline:
                self.require(rule, False, ended or f"waited {self.limit_s:g} s for: {description}")
            time.sleep(_POLL_S)
        return result

    def wait(self, description: str, condition: Callable[[], object]) -> None:
        """Wait for what does not depend on the program. Raises TimeoutError."""
        deadline = time.monotonic() + self.limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {self.limit_s:g} s for: {description}\n{self.cluster.log_tails(15)}")
            time.sleep(_POLL_S)

    def require(self, rule: str, condition: bool, why: str) -> None:
        """Raise BrokenRuleError unless the condition holds."""
        if not condition:
            raise BrokenRuleError(rule, why, self._state())

    def _state(self) -> str:
        """Return where the pods are, and how the requests for them stand."""
        pods = ((item["metadata"]["name"], item["spec"]) for item in self._items(PODS.path(self.namespace)))
        texts = [f"pod {name} on {spec.get('nodeName') or 'no node'}" for name, spec in pods]
        for item in self._items(BINDREQUESTS.path(self.namespace)):
            status = item.get("status") or {}
            end = " ".join(filter(None, (status.get("phase") or "Pending", status.get("suggestion"))))
            texts.append(f"request {item['metadata']['name']} for {item['spec']['selectedNode']} {end}")
        return "; ".join(texts) or "no pod, no request"

    def _items(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.cluster.api.get(path)["items"]
        return items

    def calls(self) -> int:
        """Return the number of the program's calls."""
        return sum(_is_of_program(json.loads(line)) for line in self.cluster.audit_lines())

    def _entries(self, verb: str, plural: str = names.PLURAL) -> Iterator[dict[str, Any]]:
        """Yield the audit log's entries of that verb about the namespace's requests, or other objects."""
        for line in self.cluster.audit_lines():
            if self.namespace not in line:  # most are of other cases
                continue
            entry = json.loads(line)
            reference = entry.get("objectRef") or {}
            key = (entry["verb"], reference.get("resource"), reference.get("namespace"))
            if key == (verb, plural, self.namespace):
                yield entry

    def _is_denied(self, path: str, probe: dict[str, Any], message: str) -> bool:
        """Whether a policy with the message denies the probe: another error says nothing of it."""
        try:
            self.cluster.api.post(f"{path}?dryRun=All", probe)
        except LocalApiError as error:
            return message in str(error)
        return False


def _is_of_program(entry: Mapping[str, Any]) -> bool:
    """Whether neither the case, nor the pair, nor a component of the cluster has sent the call."""
    is_of_cluster = entry["user"]["username"].startswith(("system:", "bowline-local-kwok"))
    return not is_of_cluster and entry.get("userAgent") != USER_AGENT


def _changes_finalizers(entry: Mapping[str, Any]) -> bool:
    """Whether a patch names finalizers."""
    return entry["verb"] == "patch" and "finalizers" in json.dumps(entry.get("requestObject"))


def _preconditions(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the preconditions of a delete in the audit log."""
    body = entry.get("requestObject") or {}
    return body.get("preconditions") or {}
