"""Claim in, next write out: the plugin's decisions as tables."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.api.selectors import Node
from bowline.framework.interface.status import Done, Fatal, Status, Waiting, merge_statuses
from bowline.framework.interface.waiting import PREREQUISITE
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.dynamic_resources.rules import (
    ClaimStatus,
    Delete,
    Finalizers,
    RequiredClaim,
    missing_claim,
    next_release,
    next_removal,
    next_reservation,
    request_errors,
    required_claims,
    unreachable,
)
from bowline.plugins.dynamic_resources.tests.builders import (
    allocation,
    claim,
    owner_meta,
    pod,
    protected_claim,
    required_claim,
    result,
    spec,
    user,
    without_requests,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT = timedelta(seconds=120)
STAMP = {"allocationTimestamp": "2026-01-01T00:00:00Z"}
KEEP = "example.com/keep"
OTHERS = [user(f"u{index}") for index in range(256)]
TIMED = {**allocation(), "allocationTimestamp": "2025-12-31T00:00:00Z"}

DECIDED, OPEN = allocation(), dict[str, Any]()  # what the entry of the request decides
TAKE = [
    pytest.param(DECIDED, claim(), Finalizers((names.RESOURCE_CLAIM_PROTECTION,)), id="the finalizer is first"),
    pytest.param(DECIDED, claim(None, KEEP), Finalizers((KEEP, names.RESOURCE_CLAIM_PROTECTION)),
        id="beside the finalizers of others"),
    pytest.param(DECIDED, protected_claim(),
        ClaimStatus({"allocation": {**allocation(), **STAMP}, "reservedFor": [user()]}),
        id="then allocation and reservation in one write"),
    pytest.param(DECIDED,
        protected_claim({"allocation": TIMED, "reservedFor": [user("a")], "devices": [{"driver": "x"}]}),
        ClaimStatus({"allocation": TIMED, "reservedFor": [user("a"), user()], "devices": [{"driver": "x"}]}),
        id="an allocation of these devices is shared and unchanged"),
    pytest.param(DECIDED, protected_claim({"allocation": TIMED, "reservedFor": [user("a"), user()]}), Status.ok(),
        id="what is there is not written again"),
    pytest.param(DECIDED, protected_claim({"allocation": TIMED, "reservedFor": [*OTHERS[:255], user()]}), Status.ok(),
        id="the 256th consumer has its place"),
    pytest.param(OPEN, claim({"allocation": TIMED, "reservedFor": [user("a")]}),
        Finalizers((names.RESOURCE_CLAIM_PROTECTION,)), id="undecided: an allocated claim is protected"),
    pytest.param(OPEN, protected_claim({"allocation": TIMED, "reservedFor": [user("a")]}),
        ClaimStatus({"allocation": TIMED, "reservedFor": [user("a"), user()]}), id="undecided: reserved as it is"),
    pytest.param(OPEN, protected_claim({"allocation": TIMED, "reservedFor": [user()]}), Status.ok(),
        id="undecided: a reserved claim is not written"),
    pytest.param(OPEN, without_requests(protected_claim()),
        ClaimStatus({"allocation": STAMP, "reservedFor": [user()]}), id="undecided: it requests no device"),
]  # fmt: skip


HERE = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}]}]}
ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}


@pytest.mark.parametrize(
    ("selector", "node", "is_usable"),
    [
        pytest.param(None, Node("node"), True, id="devices that can be used everywhere"),
        pytest.param(HERE, Node("node"), True, id="devices of the node"),
        pytest.param(HERE, Node("other"), False, id="devices of another node"),
        pytest.param(ZONE_A, Node("node", {"zone": "a"}), True, id="devices that several nodes reach, this one too"),
        pytest.param(ZONE_A, Node("node", {"zone": "b"}), False, id="devices that other nodes reach"),
    ],
)
def test_devices_must_be_usable_on_the_pods_node(selector: Any, node: Node, is_usable: bool) -> None:
    against = unreachable("claim dev of the pod (one)", {**allocation(), "nodeSelector": selector}, node)
    if is_usable:
        assert against is None
    else:
        assert against == Status.fatal(
            "claim dev of the pod (one): dra.example/node/d0 cannot be used on the selected node "
            "(nodeSelector of the allocation)",
            Reason.DEVICE_CONFLICT,
            Suggestion.RESCHEDULE_ELSEWHERE,
        )


@pytest.mark.parametrize(("decision", "stored", "expected"), TAKE)
def test_the_next_write_of_a_reservation(decision: dict[str, Any], stored: dict[str, Any], expected: Any) -> None:
    assert next_reservation(stored, required_claim(decision), NOW, TIMEOUT) == expected


CONFLICT = (Reason.DEVICE_CONFLICT, None)
ELSEWHERE = (Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
UNDECIDED = (Reason.INVALID, None)
EMPTY: tuple[dict[str, Any], ...] = ({}, {"devices": {}}, {"devices": {"results": []}}, {"nodeSelector": {}})
AGAINST: list[Any] = [
    pytest.param(protected_claim({"allocation": allocation(result("d1"))}), required_claim(allocation()), ELSEWHERE,
        "is already allocated to dra.example/node/d1; the request requires dra.example/node/d0", id="another device"),
    pytest.param(without_requests(protected_claim({"allocation": {"devices": {}}})), required_claim(allocation()),
        ELSEWHERE, "is already allocated to no device", id="an allocation of nothing"),
    pytest.param(protected_claim({"allocation": {"devices": {}}, "reservedFor": [user("a")]}), required_claim({}),
        CONFLICT, "is allocated to no device although it requests some; delete the claim",
        id="an allocation of nothing is not adopted"),
    pytest.param(protected_claim({"allocation": allocation(), "reservedFor": OTHERS}), required_claim({}), CONFLICT,
        "has 256 consumers", id="no place left beside an adopted allocation"),
    *(
        pytest.param(
            claim(),
            required_claim(decision),
            UNDECIDED,
            "is not allocated, and its entry in spec.resourceClaimAllocations decides no device; create a request",
            id=f"the entry is {decision}",
        )
        for decision in EMPTY
    ),
    pytest.param(protected_claim({"allocation": allocation(), "reservedFor": OTHERS}), required_claim(allocation()),
        CONFLICT, "has 256 consumers, and Kubernetes allows 256", id="no place left"),
    pytest.param(protected_claim(deletionTimestamp="2026-01-01T00:00:00Z"), required_claim(allocation()), CONFLICT,
        "is being deleted", id="a claim that is going"),
    pytest.param(protected_claim(**owner_meta("another")), required_claim(allocation(), is_generated=True), CONFLICT,
        "belongs to Pod pod (UID another); delete the pod and create it again, so that it gets a claim of its own",
        id="a claim made for another pod"),
    pytest.param(protected_claim(**owner_meta(controller=False)), required_claim(allocation(), is_generated=True),
        CONFLICT, "has no owner, so it was not created for the pod; delete the pod and create it again",
        id="a claim the pod owns without having it made"),
    pytest.param(claim(), required_claim(None), UNDECIDED, "is not allocated, and spec.resource", id="no decision"),
    pytest.param(protected_claim({"allocation": allocation(), "reservedFor": [user("a")]}), required_claim(None),
        UNDECIDED, "is not reserved for the pod, and spec.resourceClaimAllocations has no entry for it; add one",
        id="decided for another pod only"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "requirement", "verdict", "words"), AGAINST)
def test_a_claim_that_can_never_be_reserved_is_a_terminal_failure(
    stored: dict[str, Any], requirement: RequiredClaim, verdict: tuple[Reason, Suggestion | None], words: str
) -> None:
    answer = next_reservation(stored, requirement, NOW, TIMEOUT)
    assert isinstance(answer, Fatal)
    assert (answer.reason, answer.suggestion) == verdict
    assert words in answer.message
    assert answer.message.startswith("claim dev of the pod (one)")


def test_entries_are_distinguished_from_claims_without_one() -> None:
    asking = pod(resourceClaims=[entry("a", resourceClaimName="one"), entry("b", resourceClaimName="two")])
    claims = required_claims(asking, spec(("a", None)))
    assert [w.allocation for w in claims if isinstance(w, RequiredClaim)] == [{}, None]


def test_an_entry_without_devices_is_valid_for_a_claim_not_needed() -> None:
    asking = pod(pod_statuses(("a", None)), resourceClaims=[entry("a", resourceClaimTemplateName="tpl")])
    assert required_claims(asking, spec(("a", None))) == ()


def test_a_claim_that_the_request_does_not_name_is_only_read() -> None:
    stored_claim = claim({"allocation": allocation(result("d7")), "reservedFor": [user()]})
    assert next_reservation(stored_claim, required_claim(None), NOW, TIMEOUT) == Status.ok()
    assert next_release(stored_claim, required_claim(None)) is None


SAME = [
    pytest.param([result(consumedCapacity={"m": "1Gi"})], [result(consumedCapacity={"m": "1024Mi"})], id="spelling"),
    pytest.param([result(adminAccess=None)], [result(adminAccess=False)], id="a default written out"),
    pytest.param([result("a"), result("b")], [result("b"), result("a")], id="order"),
    pytest.param([result(tolerations=[{"key": "x"}])], [result()], id="what is filled in"),
]
DIFFERENT = [
    pytest.param([result(shareID="1")], [result(shareID="2")], id="another share"),
    pytest.param([result(consumedCapacity={"m": "1Gi"})], [result(consumedCapacity={"m": "2Gi"})], id="another size"),
    pytest.param([result(adminAccess=True)], [result()], id="other access"),
    pytest.param([result(request="a")], [result(request="b")], id="for another request"),
    pytest.param([result(), result()], [result()], id="once more"),
    pytest.param([result(consumedCapacity={"m": "odd"})], [result()], id="no quantity at all"),
]


@pytest.mark.parametrize(
    ("stored", "decision", "is_same"),
    [pytest.param(*row.values, rows is SAME, id=row.id) for rows in (SAME, DIFFERENT) for row in rows],
)
def test_devices_are_equal_in_any_form(stored: list[Any], decision: list[Any], is_same: bool) -> None:
    stored_claim = protected_claim({"allocation": allocation(*stored), "reservedFor": [user()]})
    answer = next_reservation(stored_claim, required_claim(allocation(*decision)), NOW, TIMEOUT)
    assert answer == Status.ok() if is_same else isinstance(answer, Fatal)


# --- binding conditions ---

WAITING = result(bindingConditions=["ready", "attached"], bindingFailureConditions=["broken"])


def report(*true: str, device: str = "d0", false: str = "") -> dict[str, Any]:
    conditions = [{"type": word, "status": "True"} for word in true]
    conditions += [{"type": false, "status": "False"}] if false else []
    return {"driver": "dra.example", "pool": "node", "device": device, "conditions": conditions}


READINESS: list[Any] = [
    pytest.param([], (Waiting, "for device dra.example/node/d0 to report ready, attached"), id="nothing yet"),
    pytest.param([report("ready")], (Waiting, "to report attached"), id="one of two"),
    pytest.param([report("ready", "attached", device="d1")], (Waiting, "ready, attached"), id="another device"),
    pytest.param([report("ready", "attached", false="broken")], (Done, ""), id="all of them"),
    pytest.param([report("ready", "attached", "broken")], (Fatal, "reports broken"), id="failed in the end"),
    pytest.param([report("broken")], (Fatal, "device dra.example/node/d0 reports broken"),
        id="failed immediately"),
]  # fmt: skip


@pytest.mark.parametrize(("devices", "expected"), READINESS)
def test_a_device_with_conditions_is_awaited(devices: list[Any], expected: tuple[type[Status], str]) -> None:
    stored_claim = protected_claim({"allocation": allocation(WAITING), "reservedFor": [user()], "devices": devices})
    answer = next_reservation(stored_claim, required_claim(allocation(WAITING)), NOW, TIMEOUT)
    assert isinstance(answer, Status)
    assert type(answer) is expected[0]
    assert expected[1] in answer.message
    if isinstance(answer, Waiting):
        assert [(ref.kind, ref.key, ref.resource_version) for ref in answer.wake_on] == [
            ("ResourceClaim", ObjectKey("ns", "one"), "5")
        ]
    if isinstance(answer, Fatal):
        assert answer.suggestion is Suggestion.RESCHEDULE_ELSEWHERE


@pytest.mark.parametrize(
    ("allocated_at", "left_s"),
    [
        pytest.param(None, None, id="by a scheduler that writes no time"),
        pytest.param("2025-12-31T23:58:01Z", 1, id="for an earlier pod"),
        pytest.param("9999-12-31T23:59:59Z", 120, id="by a clock that is ahead, or the latest time"),
        pytest.param("2025-12-31T23:58:00Z", 0, id="for an earlier pod, whose wait has just expired"),
    ],
)
def test_the_wait_for_a_device_ends_the_timeout_after_its_allocation(
    allocated_at: str | None, left_s: int | None
) -> None:
    timed = allocation(WAITING) | ({"allocationTimestamp": allocated_at} if allocated_at else {})
    stored_claim = protected_claim({"allocation": timed, "reservedFor": [user()]})
    answer = next_reservation(stored_claim, required_claim(allocation(WAITING)), NOW, TIMEOUT)
    assert isinstance(answer, Fatal | Waiting)
    assert answer.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    if left_s == 0:
        assert isinstance(answer, Fatal)
        assert answer.reason is Reason.WAIT_TIMEOUT
        assert answer.message.endswith("to report ready, attached, allocated 120 s ago")
        return
    left = timedelta(seconds=left_s) if left_s is not None else None
    assert isinstance(answer, Waiting)
    assert (answer.timeout, answer.retry_after) == (TIMEOUT, left)


# --- release ---

RELEASE = [
    pytest.param(DECIDED, protected_claim({"allocation": TIMED, "reservedFor": [user("a"), user()], "devices": [1]}),
        ClaimStatus({"allocation": TIMED, "reservedFor": [user("a")], "devices": [1]}),
        id="one of several removes only itself"),
    pytest.param(DECIDED, protected_claim({"allocation": TIMED, "reservedFor": [user()], "devices": [1], "newer": 1}),
        ClaimStatus({"newer": 1}), id="the last one takes the allocation along"),
    pytest.param(DECIDED, protected_claim({}), Finalizers(()), id="and then the finalizer"),
    pytest.param(DECIDED, claim(None, KEEP, names.RESOURCE_CLAIM_PROTECTION), Finalizers((KEEP,)),
        id="but no other finalizer"),
    pytest.param(DECIDED, claim(), None, id="nothing was taken"),
    pytest.param(DECIDED, protected_claim({"allocation": TIMED, "reservedFor": [user("a")]}), None,
        id="another pod's claim is not touched"),
    pytest.param(DECIDED, protected_claim({"allocation": TIMED}), None, id="nor an allocation that is for no pod"),
    pytest.param(DECIDED, protected_claim({"allocation": allocation(result("d1")), "reservedFor": [user()]}), None,
        id="another decision for the pod"),
    pytest.param(OPEN, protected_claim({"allocation": TIMED, "reservedFor": [user("a"), user()]}),
        ClaimStatus({"allocation": TIMED, "reservedFor": [user("a")]}), id="undecided: the reservation"),
    pytest.param(OPEN, protected_claim({"allocation": TIMED, "reservedFor": [user()]}), ClaimStatus({}),
        id="undecided: the devices, as the last user"),
]  # fmt: skip


@pytest.mark.parametrize(("decision", "stored", "expected"), RELEASE)
def test_the_next_write_of_a_release(decision: dict[str, Any], stored: dict[str, Any], expected: Any) -> None:
    assert next_release(stored, required_claim(decision)) == expected


EXTENDED: dict[str, Any] = {"annotations": {names.EXTENDED_RESOURCE_CLAIM: "true"}}
GOING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
REMOVE = [
    pytest.param(protected_claim(**EXTENDED, **owner_meta()), Delete(), id="it is deleted"),
    pytest.param(protected_claim(**EXTENDED, **owner_meta(), **GOING), Finalizers(()), id="and let go"),
    pytest.param(claim(None, KEEP, **EXTENDED, **owner_meta(), **GOING), Status.ok(), id="the rest is others' to do"),
    pytest.param(protected_claim(**owner_meta("b")), Status.ok(), id="another pod's claim from a template remains"),
    pytest.param(protected_claim(**EXTENDED, **owner_meta("b")), Status.ok(), id="another pod's claim remains"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "expected"), REMOVE)
def test_the_next_write_to_delete_a_claim_of_extended_resources(stored: dict[str, Any], expected: Any) -> None:
    assert next_removal(stored, required_claim(allocation())) == expected


@pytest.mark.parametrize(
    ("remaining_metadata", "why"),
    [
        pytest.param(EXTENDED, "owner, so it may be another pod's", id="owner"),
        pytest.param(owner_meta(), "annotation, so it may be for another purpose", id="annotation"),
    ],
)
def test_a_claim_of_extended_resources_that_another_client_has_changed_is_named(
    remaining_metadata: dict[str, Any], why: str
) -> None:
    required = required_claim(allocation())
    result = next_removal(protected_claim({"reservedFor": [user()]}, **remaining_metadata), required)
    assert result == Done((f"{required.label} has lost its {why}",))


# --- which claims ---


def entry(name: str, **source: str) -> dict[str, str]:
    return {"name": name, **source}


def pod_statuses(*names_and_claims: tuple[str, str | None]) -> dict[str, Any]:
    return {"resourceClaimStatuses": [{"name": n, "resourceClaimName": c} for n, c in names_and_claims]}


def test_a_claim_is_named_by_the_pod_or_by_its_status() -> None:
    asking = pod(
        pod_statuses(("b", "pod-b-x7"), ("none", None)),
        resourceClaims=[
            entry("a", resourceClaimName="shared"),
            entry("b", resourceClaimTemplateName="tpl"),
            entry("none", resourceClaimTemplateName="tpl"),
        ],
    )
    claims = required_claims(asking, spec(("b", allocation())))
    assert [(w.key.name, w.allocation, w.is_generated) for w in claims if isinstance(w, RequiredClaim)] == [
        ("shared", None, False),
        ("pod-b-x7", allocation(), True),
    ]
    assert len(claims) == 2


def test_a_claim_that_does_not_exist_yet_is_awaited_and_others_are_named() -> None:
    asking = pod(resourceClaims=[entry("a", resourceClaimTemplateName="tpl"), entry("b", resourceClaimName="shared")])
    first, second = required_claims(asking, spec())
    assert isinstance(first, Status)
    assert isinstance(first, Waiting)
    assert (first.timeout, first.suggestion) == (PREREQUISITE, None)
    assert [(ref.kind, ref.key, ref.resource_version) for ref in first.wake_on] == [
        ("Pod", ObjectKey("ns", "pod"), "7")
    ]
    assert isinstance(second, RequiredClaim)


UNFIT: list[Any] = [
    pytest.param({}, [("b", allocation())], "b: is no entry of the pod's spec.resourceClaims",
        id="of no claim of the pod"),
    pytest.param({}, [("a", {}), ("a", {})], "spec.resourceClaimAllocations[1].name", id="twice"),
    pytest.param(pod_statuses(("a", None)), [("a", allocation())], "it needs no such claim",
        id="of a claim not needed"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "allocations", "words"), UNFIT)
def test_an_allocation_that_fits_no_claim_is_invalid(
    status: dict[str, Any], allocations: list[tuple[str, dict[str, Any]]], words: str
) -> None:
    asking = pod(status, resourceClaims=[entry("a", resourceClaimTemplateName="tpl")])
    (answer,) = required_claims(asking, spec(*allocations))
    assert isinstance(answer, Fatal)
    assert answer.reason is Reason.INVALID
    assert words in answer.message


def test_a_claim_allocated_twice_is_reported_with_path_and_rule() -> None:
    (fault,) = request_errors(spec(("a", {}), ("b", {}), ("a", {})))
    assert fault.rule.id == "dynamic_resources/allocation-duplicate"
    assert str(fault) == (
        'spec.resourceClaimAllocations[2].name: "a": a claim has one allocation; leave one of them out'
    )


def test_a_missing_claim_is_awaited() -> None:
    answer = missing_claim(required_claim(allocation()))
    assert isinstance(answer, Waiting)
    assert answer.message == "claim dev of the pod (one) does not exist yet"
    assert (answer.timeout, answer.suggestion) == (PREREQUISITE, None)
    assert [(ref.api_version, ref.key) for ref in answer.wake_on] == [("resource.k8s.io/v1", ObjectKey("ns", "one"))]


WAIT_A, WAIT_B = Status.wait("a"), missing_claim(required_claim(None))
BAD = Status.fatal("no")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([], Status.ok(), id="no claims"),
        pytest.param([Status.ok(), WAIT_A], WAIT_A, id="one waits"),
        pytest.param([WAIT_A, BAD], BAD, id="a failure outweighs a wait"),
        pytest.param([WAIT_A, Status.ok(), WAIT_B], Waiting((*WAIT_A.reasons, *WAIT_B.reasons),
            wake_on=WAIT_B.wake_on, timeout=PREREQUISITE, merged=(WAIT_A, WAIT_B)), id="waits are one wait"),
    ],
)  # fmt: skip
def test_several_statuses_are_joined(answers: list[Status], expected: Status) -> None:
    assert merge_statuses(answers) == expected
