"""Which object `bowline explain` chooses, and what it says of one that it may not read: answers of an API server."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from typing import Any

import pytest

from bowline_cli.cluster import Api, ApiAnswer
from bowline_cli.explain import find_subject, stuck_subjects
from bowline_cli.facts import ReleaseInfo
from bowline_cli.kubeconfig import ClusterError, ServerAccess
from bowline_cli.reader import Reader
from bowline_cli.reading import Reading

Json = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
APPS, CORE = "/apis/apps/v1/namespaces/team", "/api/v1/namespaces/team"
PODS, EVENTS, SETS = f"{CORE}/pods", f"{CORE}/events", f"{APPS}/statefulsets"
REQUESTS = "/apis/scheduling.run.ai/v1alpha2/namespaces/team/bindrequests"
FORBIDDEN = None


class Server(Api):
    """An API server: the objects of each path; None: forbidden, absent: none."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        super().__init__(ServerAccess("http://server", "team", HTTPConnection("server")))
        self.objects, self.places = objects, list[str]()

    def send(self, method: str, path: str, body: bytes | None, accept: str = "") -> ApiAnswer:
        place = path.partition("?")[0]
        self.places.append(place)
        if place not in self.objects:
            return ApiAnswer(404, {}, b"{}")
        answer = self.objects[place]
        if answer is FORBIDDEN:
            return ApiAnswer(403, {}, b"{}")
        body = json.dumps({"items": answer} if isinstance(answer, list) else answer).encode()
        return ApiAnswer(200, {}, body)


def reading(**objects: Any) -> Reading:
    return Reading(Reader(Server(objects)), "bowline-system", NOW)


def named(name: str, created: str = "11:00", **fields: Any) -> Json:
    metadata = {"name": name, "namespace": "team", "uid": name, "creationTimestamp": f"2026-01-01T{created}:00Z"}
    return {"metadata": {**metadata, **fields.pop("metadata", {})}, **fields}


def failed_creation(time: str, kind: str = "StatefulSet") -> Json:
    involved = {"kind": kind, "uid": "db"}
    return {"message": "exceeded quota", "involvedObject": involved, "lastTimestamp": f"2026-01-01T{time}:00Z"}


WORKLOAD = named("db", spec={"replicas": 2, "serviceName": ""})
MEMBER = named(
    "db-0",
    "11:30",
    metadata={"ownerReferences": [{"uid": "db"}]},
    spec={"nodeName": "n"},
    status={"phase": "Running"},
)
FAILED_MEMBER = {
    **MEMBER,
    **named("db-1", metadata={"ownerReferences": [{"uid": "db"}]}),
    "status": {"phase": "Failed"},
}


@pytest.mark.parametrize(
    ("pods", "events", "is_explained"),
    [
        pytest.param([], [failed_creation("11:10")], True, id="no pod"),
        pytest.param([MEMBER], [failed_creation("11:40")], True, id="after the newest pod"),
        pytest.param([MEMBER, FAILED_MEMBER], [failed_creation("11:40")], True, id="in place of a failed pod"),
        pytest.param([MEMBER], [failed_creation("11:10")], False, id="before the newest pod"),
        pytest.param([], [failed_creation("11:10", "ReplicaSet")], False, id="of a kind with a condition"),
    ],
)
def test_a_creation_that_fails_now_explains_a_workload(
    pods: list[Json], events: list[Json], is_explained: bool
) -> None:
    objects: Json = {f"{SETS}/db": WORKLOAD, SETS: [WORKLOAD], PODS: pods, EVENTS: events}
    causes = [subject.explanation.cause for subject in stuck_subjects(reading(**objects), "team")]
    assert any("exceeded quota" in cause for cause in causes) is is_explained
    subject = find_subject(reading(**objects), "team", "sts/db")
    assert subject is not None
    assert ("exceeded quota" in subject.explanation.cause) is is_explained


def test_each_try_to_create_a_pod_is_the_same_cause_since_the_first() -> None:
    events = [
        {**failed_creation("11:10"), "message": 'Error creating: pods "db-a" is forbidden: exceeded quota: q'},
        {**failed_creation("11:50"), "message": 'Error creating: pods "db-b" is forbidden: exceeded quota: q'},
    ]
    objects: Json = {f"{SETS}/db": WORKLOAD, SETS: [WORKLOAD], PODS: [], EVENTS: events}
    for count in (1, 2):
        objects[EVENTS] = events[:count]
        subject = find_subject(reading(**objects), "team", "sts/db")
        assert subject is not None
        assert subject.explanation.cause == "its pods are not created: exceeded quota: q"
        assert subject.explanation.since == datetime(2026, 1, 1, 11, 10, tzinfo=UTC)


LWS_API = "leaderworkerset.x-k8s.io/v1"


def owned_by(kind: str, uid: str) -> Json:
    return {"ownerReferences": [{"apiVersion": LWS_API, "kind": kind, "name": uid, "uid": uid, "controller": True}]}


@pytest.mark.parametrize("target", ["serve", "leaderworkerset/serve", "LeaderWorkerSets/serve"])
def test_an_object_of_another_kind_is_explained_by_what_it_owns(target: str) -> None:
    leaders = named("leaders", metadata=owned_by("LeaderWorkerSet", "serve"), spec={"replicas": 1})
    running: Json = {"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    leader = named("l-0", metadata=owned_by("StatefulSet", "leaders"), **running)
    workers = named("workers", metadata=owned_by("Pod", "l-0"), spec={"replicas": 2})
    worker = named("w-0", metadata=owned_by("StatefulSet", "workers"), spec={"schedulerName": "example-scheduler"})
    objects: Json = {SETS: [workers, leaders], PODS: [leader, worker], EVENTS: []}
    subject = find_subject(reading(**objects), "team", target)
    assert subject is not None
    assert subject.explanation.details[-1] == "LeaderWorkerSet team/serve: 1 of 2 pods wait"
    quota = {"message": "exceeded quota", "involvedObject": {"kind": "StatefulSet", "uid": "workers"}}
    objects |= {PODS: [leader], EVENTS: [{**quota, "lastTimestamp": "2026-01-01T11:50:00Z"}]}
    subject = find_subject(reading(**objects), "team", target)
    assert subject is not None
    assert subject.explanation.cause == "its pods are not created: exceeded quota"
    with pytest.raises(ClusterError, match="jobset serve owns no pod here"):
        find_subject(reading(**objects), "team", "jobset/serve")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("sts/db", "missing permission"),
        ("pod/db", "missing permission"),
        ("sts/", "sts/ has no name"),
        ("pod/", "pod/ has no name"),
    ],
)
def test_what_cannot_be_read_is_not_said_to_be_absent(target: str, message: str) -> None:
    objects: Json = {f"{SETS}/db": FORBIDDEN, f"{PODS}/db": FORBIDDEN, f"{SETS}/": [WORKLOAD], f"{PODS}/": []}
    with pytest.raises(ClusterError, match=message):
        find_subject(reading(**objects), "team", target)


def test_what_does_not_exist_has_no_explanation_and_a_pod_is_read_before_its_request() -> None:
    """A request that ends between the two reads is then newer than the pod, never older: see test_diagnosis.py."""
    server = Server({PODS: [], EVENTS: []})
    assert find_subject(Reading(Reader(server), "bowline-system", NOW), "team", "db") is None
    assert server.places.index(f"{PODS}/db") < server.places.index(f"{REQUESTS}/db")


@pytest.mark.parametrize(
    ("served", "scheduler", "is_listed"),
    [
        pytest.param("kai-scheduler", "default-scheduler", False, id="not served"),
        pytest.param("kai-scheduler", "kai-schedular", True, id="perhaps misspelt"),
        pytest.param("default-scheduler", "default-scheduler", True, id="served by its name"),
        pytest.param("*", "default-scheduler", True, id="served as all are"),
    ],
)
def test_the_list_has_the_pods_of_served_schedulers(served: str, scheduler: str, is_listed: bool) -> None:
    pods = [named("train", spec={"schedulerName": scheduler})]
    subjects = stuck_subjects(replace(reading(**{PODS: pods}), info=ReleaseInfo((served,))), "team")
    assert bool(subjects) is is_listed


def test_every_subject_of_a_list_names_what_was_not_read() -> None:
    waiting_pod = named("train", spec={"schedulerName": "example-scheduler"})
    objects: Json = {PODS: [waiting_pod], REQUESTS: FORBIDDEN, EVENTS: FORBIDDEN}
    (subject,) = stuck_subjects(reading(**objects), "team")
    assert set(subject.facts.unreadable) == {"bindrequests", "events"}
    assert "whether a BindRequest names it is not known" in subject.explanation.cause


def test_without_events_a_failed_creation_is_not_denied() -> None:
    objects: Json = {f"{SETS}/db": WORKLOAD, PODS: [], EVENTS: FORBIDDEN}
    subject = find_subject(reading(**objects), "team", "sts/db")
    assert subject is not None
    assert "whether a creation has failed is not known" in subject.explanation.cause


@pytest.mark.parametrize(
    ("target", "spec", "what"),
    [
        ("deploy/db", {"paused": True}, "spec.paused is true"),
        ("cj/db", {"schedule": "0 0 1 * *"}, "at the times 0 0 1"),
    ],
)
def test_a_workload_that_creates_no_pods_now_says_why(target: str, spec: Json, what: str) -> None:
    owner = named("db", spec=spec)
    objects: Json = {f"{APPS}/deployments/db": owner, "/apis/batch/v1/namespaces/team/cronjobs/db": owner, PODS: []}
    subject = find_subject(reading(**objects), "team", target)
    assert subject is not None
    assert what in subject.explanation.cause


def test_of_a_workload_the_pod_that_waits_is_explained_and_not_an_older_one_that_has_failed() -> None:
    owners = {"ownerReferences": [{"uid": "db", "controller": True}]}
    failed_pod = named("db-0", "11:00", metadata=owners, spec={"nodeName": "n"}, status={"phase": "Failed"})
    evicted_pod = named("db-1", "11:00", metadata=owners, spec={}, status={"phase": "Failed"})
    waiting_pod = named("db-2", "11:30", metadata=owners, spec={"schedulerName": "example-scheduler"})
    objects: Json = {f"{SETS}/db": WORKLOAD, SETS: [WORKLOAD], PODS: [failed_pod, evicted_pod, waiting_pod]}
    subject = find_subject(reading(**objects), "team", "sts/db")
    assert subject is not None
    assert subject.facts.key.name == "db-2"
    assert subject.explanation.details[-1] == "StatefulSet team/db: 1 of 3 pods wait"
    assert [subject.facts.key.name for subject in stuck_subjects(reading(**objects), "team")] == ["db-2"]
