"""Claims that a PodGroup shares among its pods (KEP-5729), as tables."""

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey, ObjectUID, uid_of
from bowline.framework.interface.status import Fatal, Status
from bowline.framework.reason import Reason
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import BINDREQUESTS, PODGROUPS, RESOURCECLAIMS, Resource, Selection
from bowline.plugins.dynamic_resources.claim import claim_consumer, pod_consumer
from bowline.plugins.dynamic_resources.claim_client import ClaimClient
from bowline.plugins.dynamic_resources.reserver import ClaimReserver, is_group_used
from bowline.plugins.dynamic_resources.rules import (
    ClaimStatus,
    RequiredClaim,
    next_release,
    next_reservation,
    required_claims,
)
from bowline.plugins.dynamic_resources.taint_watch import TaintWatch
from bowline.plugins.dynamic_resources.tests.builders import (
    GROUP_REFERENCE,
    GROUP_UID,
    IN_GROUP,
    POD_UID,
    allocation,
    claim,
    group_owner,
    owner_meta,
    pod,
    pod_group,
    protected_claim,
    required_claim,
    result,
    spec,
    user,
)
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT = timedelta(seconds=120)
TIMED = {**allocation(), "allocationTimestamp": "2026-01-01T00:00:00Z"}
OF_TEMPLATE = {"name": "dev", "resourceClaimTemplateName": "tpl"}
NAMED = {"name": "dev", "resourceClaimName": "one"}


@pytest.mark.parametrize(
    ("entry", "shared", "consumer"),
    [
        pytest.param(OF_TEMPLATE, [OF_TEMPLATE], GROUP_UID, id="from the same template"),
        pytest.param(NAMED, [OF_TEMPLATE | {"name": "other"}, NAMED], GROUP_UID, id="the same claim"),
        pytest.param(OF_TEMPLATE, [], POD_UID, id="the group shares none"),
        pytest.param(OF_TEMPLATE, [OF_TEMPLATE | {"name": "other"}], POD_UID, id="another entry"),
        pytest.param(OF_TEMPLATE, [OF_TEMPLATE | {"resourceClaimTemplateName": "b"}], POD_UID, id="another template"),
        pytest.param(NAMED, [OF_TEMPLATE], POD_UID, id="a claim against a template"),
    ],
)
def test_a_claim_is_reserved_for_the_pod_group_only_if_the_entries_are_equal(
    entry: dict[str, str], shared: list[dict[str, str]], consumer: str
) -> None:
    group_member = pod(resourceClaims=[entry], **IN_GROUP)
    assert claim_consumer(group_member, entry, pod_group(*shared)).uid == consumer


def test_the_claim_of_a_group_has_the_groups_reference() -> None:
    group_member = pod(resourceClaims=[NAMED], **IN_GROUP)
    (requirement,) = required_claims(group_member, spec(("dev", allocation())), pod_group(NAMED))
    assert isinstance(requirement, RequiredClaim)
    assert requirement.consumer.reference == GROUP_REFERENCE
    assert requirement.pod_uid == POD_UID


RESERVED = {"allocation": TIMED, "reservedFor": [GROUP_REFERENCE]}
BESIDE = {"allocation": TIMED, "reservedFor": [user("a"), GROUP_REFERENCE]}


@pytest.mark.parametrize(
    ("decision", "status", "owner", "expected"),
    [
        pytest.param(allocation(), {"allocation": TIMED, "reservedFor": [user("a")]}, group_owner(),
            ClaimStatus(BESIDE), id="the group is reserved, never the pod"),
        *(pytest.param(decision, RESERVED, group_owner(), Status.ok(), id=f"a further pod writes nothing: {decision}")
            for decision in (allocation(), {}, None)),
        pytest.param(allocation(), RESERVED, owner_meta(), Status.ok(),
            id="a claim that was created for the pod before the group shared it is the group's as well"),
    ],
)  # fmt: skip
def test_a_claim_of_the_group(
    decision: dict[str, Any] | None, status: dict[str, Any], owner: dict[str, Any], expected: Any
) -> None:
    requirement = required_claim(decision, is_generated=True, shared_by=GROUP_REFERENCE)
    assert next_reservation(protected_claim(status, **owner), requirement, NOW, TIMEOUT) == expected


@pytest.mark.parametrize(
    ("owner", "requirement", "remedy"),
    [
        pytest.param(group_owner(uid="former-uid"), required_claim(allocation(), is_generated=True,
            shared_by=GROUP_REFERENCE), "correct the pod", id="of a former group of that name"),
        pytest.param(group_owner(version="v1alpha2"), required_claim(allocation(), is_generated=True),
            "correct the pod", id="of a group in a version that the cluster does not serve to the reconciler"),
        pytest.param(group_owner(kind="Workload"), required_claim(allocation(), is_generated=True),
            "a claim of its own", id="of another kind of the same API group"),
        pytest.param(owner_meta("other-uid"), required_claim(allocation(), is_generated=True),
            "a claim of its own", id="of another pod"),
    ],
)  # fmt: skip
def test_a_claim_of_another_group_or_pod_is_a_conflict(
    owner: dict[str, Any], requirement: RequiredClaim, remedy: str
) -> None:
    answer = next_reservation(protected_claim(**owner), requirement, NOW, TIMEOUT)
    assert isinstance(answer, Status)
    assert isinstance(answer, Fatal)
    assert answer.reason is Reason.DEVICE_CONFLICT
    assert answer.message.endswith(remedy)


@pytest.mark.parametrize(
    ("shared_by", "reserved_for", "is_used", "devices", "expected"),
    [
        pytest.param(GROUP_REFERENCE, [GROUP_REFERENCE], True, "d0", None,
            id="the group's reservation stays: its other pods may run"),
        pytest.param(None, [GROUP_REFERENCE], True, "d0", None, id="also of a rollback that knows of no group"),
        pytest.param(GROUP_REFERENCE, [user(), GROUP_REFERENCE], True, "d0", ClaimStatus(RESERVED),
            id="an entry of the pod itself goes"),
        pytest.param(None, [user(), GROUP_REFERENCE], True, "d0", ClaimStatus(RESERVED), id="so it does there"),
        pytest.param(GROUP_REFERENCE, [GROUP_REFERENCE], True, "d7", None, id="whatever was decided"),
        pytest.param(GROUP_REFERENCE, [GROUP_REFERENCE], False, "d7", ClaimStatus({}),
            id="no pod of the group has it: freed, whatever was decided"),
        pytest.param(GROUP_REFERENCE, [user(), GROUP_REFERENCE], False, "d7", None, id="unless another has it"),
        pytest.param(GROUP_REFERENCE, [user()], False, "d7", None, id="of a pod alone, with other devices"),
    ],
)  # fmt: skip
def test_a_rollback_leaves_what_the_group_has(
    shared_by: dict[str, Any] | None, reserved_for: list[Any], is_used: bool, devices: str, expected: Any
) -> None:
    stored = protected_claim({"allocation": TIMED, "reservedFor": reserved_for}, **group_owner())
    requirement = required_claim(allocation(result(devices)), shared_by=shared_by)
    assert next_release(stored, requirement, is_group_used=is_used) == expected


def member(name: str, **spec: Any) -> dict[str, Any]:
    """A pod of the group with the shared claim."""
    made = pod(name=name, resourceClaims=[NAMED], **IN_GROUP, **spec)
    made["metadata"]["uid"] = f"uid-{name}"
    return made


def request(name: str, **metadata: Any) -> dict[str, Any]:
    """An unfinished request for a pod of the group, with side effects."""
    made = stored(bind_request(name, "node", "ns", f"uid-{name}", resourceClaimAllocations=[
        {"name": "dev", "allocation": allocation()}]))  # fmt: skip
    made["metadata"] |= {"uid": f"request-{name}", "finalizers": [names.FINALIZER], **metadata}
    return made


class Namespace:
    """A namespace with pods of the group, their requests, and the claim that the group has reserved."""

    def __init__(self, pods: Sequence[dict[str, Any]], requests: Sequence[dict[str, Any]]) -> None:
        self.clock = SteppedClock()
        self.pods, self.requests = list(pods), list(requests)
        reserved = {"allocation": TIMED, "reservedFor": [GROUP_REFERENCE]}
        self.claim: dict[str, Any] = protected_claim(reserved)

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        other = {RESOURCECLAIMS: self.claim, PODGROUPS: pod_group(NAMED)}.get(resource)
        return deepcopy(other or next(pod for pod in self.pods if pod["metadata"]["name"] == name))

    async def list_reduced(self, selection: Selection, reduce: Callable[[Any], Any]) -> list[Any]:
        await asyncio.sleep(0)
        return [reduce(obj) for obj in (self.requests if selection.resource is BINDREQUESTS else self.pods)]

    async def update(self, *address: Any, **options: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.claim = deepcopy(address[3])
        return deepcopy(self.claim)

    async def patch(self, *address: Any, **options: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.claim["metadata"] |= address[3]["metadata"]
        return deepcopy(self.claim)


class BoundBetweenLists(Namespace):
    """The other pod of the group is bound, and its request succeeds, after the first list."""

    async def list_reduced(self, selection: Selection, reduce: Callable[[Any], Any]) -> list[Any]:
        answer = await super().list_reduced(selection, reduce)
        self.pods[0]["spec"]["nodeName"] = "node"
        self.requests[0]["status"] = {"phase": "Succeeded"}
        return answer


OTHER = ObjectKey("ns", "other")
OPEN = {key: value for key, value in request("other")["spec"].items() if key != "resourceClaimAllocations"}
USERS = [
    pytest.param(request("other"), {}, True, id="it has a request"),
    pytest.param(request("other"), {OTHER: "request-other"}, False, id="its request is being rolled back"),
    pytest.param(request("other"), {OTHER: "request-former"}, True, id="a former request was rolled back"),
    pytest.param(request("other") | {"status": {"phase": "Failed"}}, {}, False, id="its request has failed"),
    pytest.param(request("other", finalizers=[]), {}, False, id="its request has reserved nothing"),
    pytest.param(request("other", finalizers=[]) | {"spec": OPEN}, {}, True, id="its request only reads the claim"),
]


@pytest.mark.parametrize(("its_request", "withdrawn", "is_used"), USERS)
def test_another_pod_of_the_group_may_have_the_claim_if(
    its_request: dict[str, Any], withdrawn: dict[ObjectKey, ObjectUID], is_used: bool
) -> None:
    namespace = cast("ObjectClient", Namespace([member("other")], [its_request]))
    assert asyncio.run(is_group_used(namespace, member("own"), withdrawn, False)) is is_used


def test_a_pod_that_is_bound_while_the_users_of_the_group_are_listed_is_one() -> None:
    namespace = cast("ObjectClient", BoundBetweenLists([member("other")], [request("other")]))
    assert asyncio.run(is_group_used(namespace, member("own"), {}, False))


def test_a_pod_that_cannot_be_read_may_be_one_of_the_group() -> None:
    unread = {"metadata": {"namespace": "ns", "name": "other", "uid": "uid-other"}}
    assert asyncio.run(is_group_used(cast("ObjectClient", Namespace([unread], [])), member("own"), {}, False))


def test_pods_of_a_group_that_are_rolled_back_together_free_their_claim() -> None:
    stored_requests = [request("a"), request("b")]
    namespace = Namespace([member("a"), member("b")], stored_requests)
    requests = [decode_bind_request(stored_request) for stored_request in stored_requests]
    reserver = ClaimReserver(cast("ObjectClient", namespace), TIMEOUT, TaintWatch())

    async def roll_back() -> None:
        answers = await asyncio.gather(*(reserver.unreserve(item, cast("Any", item.spec)) for item in requests))
        assert answers == [Status.ok()] * 2

    asyncio.run(roll_back())
    assert not namespace.claim["status"]
    assert not namespace.claim["metadata"]["finalizers"]


def test_the_claims_of_a_bound_pod_are_not_released() -> None:
    stored_request = request("a")
    namespace = Namespace([member("a", nodeName="node")], [stored_request])
    reserver = ClaimReserver(cast("ObjectClient", namespace), TIMEOUT, TaintWatch())
    bound_request = decode_bind_request(stored_request)
    assert asyncio.run(reserver.unreserve(bound_request, cast("Any", bound_request.spec))) == Status.ok()
    assert namespace.claim["status"]["reservedFor"] == [GROUP_REFERENCE]


def test_a_claim_that_another_request_has_just_written_is_read_again() -> None:
    namespace = Namespace([], [])
    read_before = namespace.claim = protected_claim({})
    client = ClaimClient(cast("ObjectClient", namespace), TIMEOUT)
    first, other = required_claim(allocation()), member("other")
    second = replace(first, consumer=pod_consumer(other), pod_uid=uid_of(other))

    async def reserve_both() -> None:
        await asyncio.gather(*(client.reserve(read_before, requirement) for requirement in (first, second)))

    asyncio.run(reserve_both())
    consumers = [requirement.consumer.reference for requirement in (first, second)]
    assert namespace.claim["status"]["reservedFor"] == consumers


class OneTaken(Namespace):
    """The claim ``two`` is another pod's."""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        return (
            claim({}, name="two", **owner_meta("other-uid"))
            if name == "two"
            else await super().get(resource, namespace, name)
        )


def test_no_claim_is_reserved_while_another_one_of_the_pod_cannot_be() -> None:
    namespace = OneTaken([], [])
    before = namespace.claim = protected_claim({})
    reserver = ClaimReserver(cast("ObjectClient", namespace), TIMEOUT, TaintWatch())
    entries = [NAMED, {"name": "two", "resourceClaimTemplateName": "tpl"}]
    status = {"resourceClaimStatuses": [{"name": "two", "resourceClaimName": "two"}]}
    decision = spec(("dev", allocation()), ("two", allocation()))
    answer = asyncio.run(
        reserver.reserve(pod(status, resourceClaims=entries), {"metadata": {"name": "node"}}, decision, {})
    )
    assert isinstance(answer, Fatal)
    assert answer.reason is Reason.DEVICE_CONFLICT
    assert namespace.claim == before


def test_a_claim_that_another_rollback_has_freed_since_it_was_read_is_reserved_again() -> None:
    namespace = Namespace([], [])
    read_before, namespace.claim = namespace.claim, claim({})
    client = ClaimClient(cast("ObjectClient", namespace), TIMEOUT)
    requirement = required_claim(allocation(), shared_by=GROUP_REFERENCE)
    assert asyncio.run(client.reserve(read_before, requirement)) == Status.ok()
    assert namespace.claim["status"]["reservedFor"] == [GROUP_REFERENCE]
