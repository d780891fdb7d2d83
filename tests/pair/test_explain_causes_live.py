"""``bowline explain`` beside about forty causes at once, polled: no answer is false, and each becomes complete.

The pods of all causes are made on one cluster, then all are asked in turn, with the rights of the role ``view``
unless a cause is about rights, until each answer is complete. An answer names the cause itself or a more general true
one, and states nothing that the stored pod and request contradict. The commands of the last answers work.
"""

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bowline.testing.builders import bind_request, node, pod
from bowline_cli.api import ClusterError
from bowline_cli.cluster import connect
from bowline_cli.explain import Reading, as_text, find_subject
from bowline_cli.reader import Reader
from tests.live import FLAKY, Live
from tests.pair.conftest import OWNER, own
from tests.pair.test_explain_live import FALSE, commands, deployment, stored, without_reconciler, works
from tests.pairs import own_namespace
from tests.plugins.claims import template
from tests.plugins.denied_bindings import denied_bindings
from tests.plugins.sharing import RESERVATIONS, SILENT, Shares
from tests.plugins.storage import Storage, mounts
from tests.pod_groups import in_group, install_pod_groups, pod_group
from tests.waiting import LIMIT_S

# What is true of any pod on its way to its cause; ``FALSE`` says when it is not.
GENERAL = ("no scheduler has decided", "the reconciler has not reported on the BindRequest yet")
PAUSED = ("the pod is bound to node", *GENERAL)
ADMINISTRATOR, STRANGER = "administrator", "stranger"
ON_KWOK = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]


@dataclass(frozen=True, slots=True)
class Place:
    """Where causes are made: two namespaces, the second with a policy that denies every Binding."""

    live: Live
    denying: Live
    fenced: Live

    @property
    def storage(self) -> Storage:
        return Storage(self.live)


@dataclass(frozen=True, slots=True)
class StuckPod:
    """A cause. ``texts``: of the complete answer; ``general``: true before that. ``make``: with the target's name.

    ``reader``: the account that asks.
    """

    name: str
    make: Callable[[Place, str], object]
    texts: Sequence[str]
    general: Sequence[str] = GENERAL
    kind: str = "pod"
    place: str = "live"
    reader: str = OWNER

    @property
    def target(self) -> str:
        return f"{self.kind}/{self.name}"

    def live(self, place: Place) -> Live:
        live: Live = getattr(place, self.place)
        return live


# --- how each is made ---


def undecided(annotations: Mapping[str, str] | None = None, **spec: Any) -> Callable[[Place, str], object]:
    return lambda place, name: place.live.create_pod(name, annotations, **spec)


def decided(
    node: str = "gpu-node-0", annotations: Mapping[str, str] | None = None, **spec: Any
) -> Callable[[Place, str], object]:
    def make(place: Place, name: str) -> None:
        place.live.request_bind(name, node, place.live.create_pod(name, annotations, **spec))

    return make


def reported(message: str) -> Callable[[Place, str], object]:
    """A pod that its scheduler finds no node for."""

    def make(place: Place, name: str) -> None:
        place.live.create_pod(name)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        patch_status(place.live, name, {"conditions": [condition]})

    return make


def patch_status(live: Live, name: str, status: Any) -> None:
    live.kubectl("patch", "pod", name, "--subresource=status", f"--patch={json.dumps({'status': status})}")


def started(status: Any) -> Callable[[Place, str], object]:
    """A bound pod of which the kubelet reports this."""

    def make(place: Place, name: str) -> None:
        decided()(place, name)
        place.live.until(f"{name} runs", lambda: place.live.pod(name)["status"]["phase"] == "Running")
        patch_status(place.live, name, status)

    return make


def container(**state: Any) -> Any:
    state = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, **state}
    return {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [state]}


def missing_claim(place: Place, name: str) -> None:
    decided(volumes=mounts("absent"))(place, name)


def claim_without_driver(place: Place, name: str) -> None:
    place.live.kubectl("delete", "resourceslices", "--all")
    place.live.create(template(name))
    place.live.create_pod(name, resourceClaims=[{"name": "dev", "resourceClaimTemplateName": name}])


def missing_class(place: Place, name: str) -> None:
    place.storage.make_claim("no-class", cls="nosuch")
    decided(volumes=mounts("no-class"))(place, name)


def deleted_claim(place: Place, name: str) -> None:
    place.storage.make_claim("ending", cls="nosuch")
    keep = {"metadata": {"finalizers": ["example.com/keep"]}}
    place.live.cluster.api.patch(place.storage.claim_path("ending"), keep)
    place.live.kubectl("delete", "pvc", "ending", "--wait=false")
    decided(volumes=mounts("ending"))(place, name)


def silent_agent(place: Place, name: str) -> None:
    shares = Shares(place.live)
    shares.make(name, tolerations=SILENT)
    shares.ask(name, [f"{place.live.namespace}-silent"], "gpu-node-1")


def unpulled_agent(place: Place, name: str) -> None:
    shares, group = Shares(place.live), f"{place.live.namespace}-unpulled"
    shares.make(name, tolerations=SILENT)
    shares.ask(name, [group], "gpu-node-2")
    (reservation,) = place.live.until("the reservation exists", lambda: shares.reservations(group) or None)
    path = f"{RESERVATIONS}/{reservation['metadata']['name']}"
    place.live.until("it runs", lambda: shares.api.get(path)["status"]["phase"] == "Running")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    shares.api.patch(f"{path}/status", {"status": container(state=waiting)})


def other_name(place: Place, name: str) -> None:
    body = bind_request(name, "gone", place.live.namespace, place.live.create_pod(name))
    body["metadata"]["name"] = f"{name}-decision-1"
    place.live.create(body)


def two_requests(place: Place, name: str) -> None:
    uid = place.live.create_pod(name, schedulingGates=[{"name": "example.com/a"}])
    place.live.request_bind(name, uid=uid)
    place.live.phase(name, "Pending")
    second = bind_request(name, "gpu-node-1", place.live.namespace, uid)
    second["metadata"]["name"] = f"{name}-2"
    place.live.create(second)


def between_decisions(place: Place, name: str) -> None:
    decided("gone")(place, name)
    place.live.phase(name, "Failed")
    place.live.kubectl("delete", "bindrequest", name)


def ending_pod(place: Place, name: str) -> None:
    place.live.create_pod(name)
    change = {"metadata": {"finalizers": ["example.com/keep"]}}
    place.live.kubectl("patch", "pod", name, f"--patch={json.dumps(change)}")
    place.live.kubectl("delete", "pod", name, "--wait=false")


def gang(place: Place, name: str) -> None:
    place.live.create(pod_group("gang", 3))
    for member in ("gang-a", "gang-b"):
        decided(annotations=in_group("gang"))(place, member)
    place.live.create_pod(name, in_group("gang"))


def on_bad_node(change: Any) -> Callable[[Place, str], object]:
    def make(place: Place, name: str) -> None:
        body = node(f"{place.live.namespace}-{name}")
        body["spec"] = {**body.get("spec", {}), **change}
        place.live.cluster.api.post("/api/v1/nodes", body)
        decided(body["metadata"]["name"], tolerations=ON_KWOK)(place, name)

    return make


def workload(kind: str = "Deployment", **change: Any) -> Callable[[Place, str], object]:
    def make(place: Place, name: str) -> None:
        place.live.create({**deployment(place.live, name, **change), "kind": kind})

    return make


def scaled_down(place: Place, name: str) -> None:
    body: Any = deployment(place.live, name)
    body["spec"]["replicas"] = 0
    place.live.create(body)


def suspended_job(place: Place, name: str) -> None:
    spec = {**pod("x", place.live.namespace)["spec"], "restartPolicy": "Never"}
    job = {"suspend": True, "template": {"spec": spec}}
    place.live.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job})


def fenced_workload(place: Place, name: str) -> None:
    place.fenced.create({**deployment(place.fenced, name), "kind": "ReplicaSet"})


def over_quota(place: Place, name: str) -> None:
    requests = {"resources": {"requests": {"cpu": "64"}}}
    containers = [{**pod()["spec"]["containers"][0], **requests}]
    quota = {"hard": {"requests.cpu": "1"}, "scopes": ["NotBestEffort"]}
    place.live.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpu"}, "spec": quota})
    used = {"hard": quota["hard"], "used": {"requests.cpu": "0"}}  # as the controller that is not here reports it
    path = f"/api/v1/namespaces/{place.live.namespace}/resourcequotas/cpu/status"
    place.live.cluster.api.patch(path, {"status": used})
    body: Any = deployment(place.live, name, containers=containers)
    place.live.create({**body, "kind": "ReplicaSet"})


def denied_binding(place: Place, name: str) -> None:
    place.denying.request_bind(name, uid=place.denying.create_pod(name))


FOREIGN = "is not one that Bowline serves (kai-scheduler, bowline)"
FINDS_NO_NODE = "scheduler bowline has found no node: "
GATED = [{"name": "example.com/quota"}]
FAILED = "the bind has failed: "
STUCK: Sequence[StuckPod] = (
    StuckPod("plain", undecided(), ["no scheduler has decided", "bowline has reported nothing about it"]),
    StuckPod("kai-absent", undecided(schedulerName="kai-scheduler"), ["kai-scheduler has reported nothing about it"]),
    StuckPod(
        "typo", undecided(schedulerName="kai-schedular"), [f"kai-schedular {FOREIGN}; did you mean kai-scheduler?"]
    ),
    StuckPod("default", undecided(schedulerName="default-scheduler"), [f"default-scheduler {FOREIGN}"]),
    StuckPod("gated", undecided(schedulingGates=GATED), ["while the pod has scheduling gates: example.com/quota"]),
    StuckPod(
        "gated-late", decided(schedulingGates=GATED), ["still has scheduling gates: example.com/quota", "until"]
    ),
    StuckPod("too-big", reported("4 too few nvidia.com/gpu (9 of 8)"), [f"{FINDS_NO_NODE}4 too few nvidia.com/gpu"]),
    StuckPod("selector", reported("4 did not match nodeSelector"), [f"{FINDS_NO_NODE}4 did not match nodeSelector"]),
    StuckPod("claim", missing_claim, ["claim absent does not exist yet", "create it", "get persistentvolumeclaims"]),
    StuckPod(
        "expired",
        missing_claim,
        [f"{FAILED}WaitTimeout: waited for ", "claim absent does not exist yet", "get persistentvolumeclaims"],
        (*GENERAL, "claim absent does not exist yet"),
    ),
    StuckPod(
        "no-driver",
        claim_without_driver,
        ["no scheduler has decided", "no DRA driver offers devices"],
        reader=ADMINISTRATOR,
    ),
    StuckPod("no-driver-seen", claim_without_driver, ["no scheduler has decided", "get resourceclaims"]),
    StuckPod(
        "no-rights",
        undecided(),
        ['cannot get resource "pods"', "the role view in the namespace is enough"],
        reader=STRANGER,
    ),
    StuckPod("class", missing_class, ["nosuch does not exist", "WaitTimeout"]),
    StuckPod("claim-ending", deleted_claim, ["ending", "being deleted"]),
    StuckPod("cordon", on_bad_node({"unschedulable": True}), [f"{FAILED}NodeUnschedulable: "]),
    StuckPod(
        "taint",
        on_bad_node({"taints": [{"key": "example.com/broken", "effect": "NoSchedule"}]}),
        [f"{FAILED}NodeUnschedulable: ", "example.com/broken"],
    ),
    StuckPod(
        "node-gone", decided("gone"), [f"{FAILED}NodeGone: node gone does not exist", "decides for another node"]
    ),
    StuckPod("silent", silent_agent, ["the agent has not reported the device yet"], (*GENERAL, FAILED)),
    StuckPod("unpulled", unpulled_agent, ["ImagePullBackOff"], (*GENERAL, "the agent has not reported", FAILED)),
    StuckPod("other-name", other_name, [f"{FAILED}NodeGone: node gone does not exist"]),
    StuckPod("two", two_requests, ["still has scheduling gates", "other requests for the pod: ", "two-2"]),
    StuckPod("between", between_decisions, ["the decision for node gone has failed ", "NodeGone: node gone"]),
    StuckPod("ending", ending_pod, ["the pod is being deleted; finalizers: example.com/keep"]),
    StuckPod("gang-c", gang, ["no scheduler has decided", "2 of its 3 pods have a decision; without one: gang-c"]),
    StuckPod("flaky", decided(annotations={FLAKY: "6"}), [" of 7 failed: example_flaky: failing on purpose"], PAUSED),
    StuckPod("denied", denied_binding, ["the quota of the team is used up"], place="denying"),
    StuckPod(
        "pull",
        started(container(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})),
        ["a container does not", "main ImagePullBackOff: no such image"],
        PAUSED,
    ),
    StuckPod(
        "killed",
        started(
            container(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            )
        ),
        ["main ended: OOMKilled, exit code 137"],
        PAUSED,
    ),
    StuckPod(
        "refused",
        started({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}),
        ["the pod has failed on node gpu-node-0", "UnexpectedAdmissionError: Allocate failed"],
        PAUSED,
    ),
    StuckPod("runs", decided(), ["the pod is bound to node gpu-node-0: Running"], PAUSED),
    StuckPod("web", workload(), ["no scheduler has decided", "1 of 1 pods wait"], ("has no pods yet",), "deploy"),
    StuckPod("off", scaled_down, ["has replicas 0, so it has no pods"], ("has no pods yet",), "deploy"),
    StuckPod("train", suspended_job, ["is suspended and has no pods"], (), "job"),
    StuckPod(
        "priority",
        workload("ReplicaSet", priorityClassName="nosuch"),
        ["are not created: ", "no PriorityClass with name nosuch"],
        ("has no pods yet",),
        "rs",
    ),
    StuckPod(
        "quota",
        over_quota,
        ["are not created: ", "exceeded quota: cpu", "describe resourcequota"],
        ("has no pods yet",),
        "rs",
    ),
    StuckPod(
        "security",
        fenced_workload,
        ["are not created: ", 'violates PodSecurity "restricted'],
        ("has no pods yet",),
        "rs",
        "fenced",
    ),
)
UNMADE = workload("ReplicaSet")
# While no reconciler leads and no webhook answers, and after it.
STOPPED: Sequence[StuckPod] = (
    StuckPod(
        "unmade",
        UNMADE,
        ["are not created: ", "failed calling webhook", "a replica of the webhook answers"],
        ("has no pods yet",),
        "rs",
    ),
    StuckPod("plain", undecided(), ["no reconciler leads: "]),
)
RESTORED: Sequence[StuckPod] = (
    StuckPod("unmade", UNMADE, ["no scheduler has decided", "1 of 1 pods wait"], ("failed calling webhook",), "rs"),
    StuckPod("plain", undecided(), ["the pod is bound to node gpu-node-0"], ("no reconciler leads: ", *GENERAL)),
)
# While the reconciler lacks a right, and after it.
RIGHTLESS: Sequence[StuckPod] = (
    StuckPod("forbidden", decided(), ['cannot create resource "pods/binding"', "reconciler"]),
)
GRANTED: Sequence[StuckPod] = (
    StuckPod(
        "forbidden", decided(), ["the pod is bound to node gpu-node-0"], ('cannot create resource "pods/binding"',)
    ),
)


# --- asking ---


@dataclass(frozen=True, slots=True)
class Answers:
    """Asks. ``readers``: kubeconfigs; ``false``: statements that were not so; ``last``: the latest answers."""

    place: Place
    readers: Mapping[str, Path]
    false: list[str] = field(default_factory=list)
    last: dict[str, str] = field(default_factory=dict)

    def ask(self, stuck: StuckPod) -> bool:
        """Ask once; return whether the answer is complete."""
        live = stuck.live(self.place)
        options = Namespace(kubeconfig=str(self.readers[stuck.reader]), context=None)
        before = stored(live, stuck.name) if stuck.kind == "pod" else None
        api = connect(options)
        try:
            subject = find_subject(Reading.begin(Reader(api), "bowline-system"), live.namespace, stuck.target)
            answer = as_text(subject) if subject is not None else "nothing"
        except ClusterError as error:
            answer = str(error)
        finally:
            api.close()
        is_complete = all(text in answer for text in stuck.texts)
        if not is_complete and not any(text in answer for text in stuck.general):
            self.false.append(f"{stuck.name}: neither the cause nor a general one: {answer}")
        if before is not None:
            after = stored(live, stuck.name)
            self.false.extend(
                f"{stuck.name}: {text}: {answer}"
                for text, is_false in FALSE.items()
                if text in answer and not any(text in own for own in stuck.texts) and is_false(before, after)
            )
        self.last[stuck.name] = answer
        return is_complete

    def ask_all(self, stuck: Sequence[StuckPod], rounds: int) -> None:
        """Ask about all in turn, so many rounds at least, until each has had a complete answer."""
        complete: set[str] = set()
        limit = datetime.now(UTC) + timedelta(seconds=LIMIT_S)
        while rounds > 0 or (len(complete) < len(stuck) and datetime.now(UTC) < limit):
            complete |= {each.name for each in stuck if self.ask(each)}
            rounds -= 1
        assert {each.name: self.last[each.name] for each in stuck if each.name not in complete} == {}


@pytest.fixture
def place(pair: Live, owner: Path) -> Iterator[Place]:
    """Three namespaces, readable by the owner; what is outside them is removed at the end."""
    with own_namespace(pair.cluster, pair.pair) as denying, own_namespace(pair.cluster, pair.pair) as fenced:
        for live in (pair, denying, fenced):
            own(live)
        level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        pair.cluster.api.patch(f"/api/v1/namespaces/{fenced.namespace}", level)
        install_pod_groups(pair.cluster)
        try:
            with denied_bindings(denying):
                yield Place(pair, denying, fenced)
        finally:
            clean(pair)


def clean(live: Live) -> None:
    for each in live.cluster.api.get("/api/v1/nodes")["items"]:
        if each["metadata"]["name"].startswith(live.namespace):
            live.cluster.api.delete(f"/api/v1/nodes/{each['metadata']['name']}")
    without = json.dumps({"metadata": {"finalizers": None}})
    for reference in ("pvc/ending", "pod/ending"):
        live.kubectl("patch", reference, "--type=merge", f"--patch={without}", check=False)


@contextmanager
def without_webhook(live: Live) -> Iterator[None]:
    assert live.pair.webhook is not None
    live.pair.webhook.stop()
    try:
        yield
    finally:
        live.pair.launch_webhook().wait_ready()


@contextmanager
def without_right(live: Live, resource: str) -> Iterator[None]:
    """The reconciler's role lacks the rule of a resource."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/bowline-reconciler"
    rules = live.cluster.api.get(path)["rules"]
    live.cluster.api.patch(path, {"rules": [rule for rule in rules if resource not in rule["resources"]]})
    try:
        yield
    finally:
        live.cluster.api.patch(path, {"rules": rules})


def test_no_answer_is_false_and_each_becomes_complete(place: Place, owner: Path) -> None:
    place.live.kubectl("create", "serviceaccount", STRANGER)
    stranger = place.live.cluster.service_account_kubeconfig(place.live.namespace, STRANGER)
    readers = {OWNER: owner, ADMINISTRATOR: place.live.cluster.kubeconfig, STRANGER: stranger}
    answers = Answers(place, readers)
    for stuck in STUCK:
        stuck.make(place, stuck.name)
        answers.ask(stuck)
    answers.ask_all(STUCK, rounds=3)
    last = dict(answers.last)
    with without_reconciler(place.live):
        place.live.request_bind("plain")
        with without_webhook(place.live):
            UNMADE(place, "unmade")
            answers.ask_all(STOPPED, rounds=1)
    answers.ask_all(RESTORED, rounds=1)
    with without_right(place.live, "pods/binding"):
        decided()(place, "forbidden")
        answers.ask_all(RIGHTLESS, rounds=1)
        last |= {stuck.name: answers.last[stuck.name] for stuck in RIGHTLESS}
    answers.ask_all(GRANTED, rounds=1)
    assert answers.false == []
    for stuck in (*STUCK, *RIGHTLESS):
        for command in commands(last[stuck.name]):
            works(stuck.live(place), command, readers[stuck.reader])
