"""Claims that a PodGroup shares among its pods (KEP-5729), as tables."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import BINDREQUESTS, Selection
from bowline.plugins.dynamic_resources.pod_group import claim_consumer
from bowline.plugins.dynamic_resources.reserver import is_group_used
from bowline.plugins.dynamic_resources.rules import (
    ClaimStatus,
    RequiredClaim,
    next_release,
    next_reservation,
    required_claims,
)
from bowline.plugins.dynamic_resources.tests.builders import (
    GROUP_REFERENCE,
    GROUP_UID,
    IN_GROUP,
    POD_UID,
    allocation,
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


@pytest.mark.parametrize(
    ("reserved_for", "remaining"), [pytest.param([user("a")], [user("a")], id="beside a pod outside the group")]
)
def test_the_group_is_reserved_and_never_the_pod(reserved_for: list[Any], remaining: list[Any]) -> None:
    stored = protected_claim({"allocation": TIMED, "reservedFor": reserved_for}, **group_owner())
    requirement = required_claim(allocation(), is_generated=True, shared_by=GROUP_REFERENCE)
    expected = ClaimStatus({"allocation": TIMED, "reservedFor": [*remaining, GROUP_REFERENCE]})
    assert next_reservation(stored, requirement, NOW, TIMEOUT) == expected


@pytest.mark.parametrize("decision", [allocation(), {}, None])
def test_a_further_pod_of_the_group_writes_nothing(decision: dict[str, Any] | None) -> None:
    stored = protected_claim({"allocation": TIMED, "reservedFor": [GROUP_REFERENCE]}, **group_owner())
    requirement = required_claim(decision, is_generated=True, shared_by=GROUP_REFERENCE)
    assert next_reservation(stored, requirement, NOW, TIMEOUT) == Status.ok()


def test_a_claim_created_for_the_pod_before_the_group_shared_it_is_the_groups_as_well() -> None:
    stored = protected_claim({"allocation": TIMED, "reservedFor": [GROUP_REFERENCE]}, **owner_meta())
    requirement = required_claim(allocation(), is_generated=True, shared_by=GROUP_REFERENCE)
    assert next_reservation(stored, requirement, NOW, TIMEOUT) == Status.ok()


@pytest.mark.parametrize(
    ("owner", "requirement"),
    [
        pytest.param(group_owner("other", "other-uid"), required_claim(allocation(), is_generated=True,
            shared_by=GROUP_REFERENCE), id="of another group"),
        pytest.param(group_owner(uid="former-uid"), required_claim(allocation(), is_generated=True,
            shared_by=GROUP_REFERENCE), id="of a former group of that name"),
        pytest.param(group_owner(version="v1alpha2"), required_claim(allocation(), is_generated=True),
            id="of a group in a version that the cluster does not serve to the reconciler"),
    ],
)  # fmt: skip
def test_a_claim_of_another_group_is_a_conflict(owner: dict[str, Any], requirement: RequiredClaim) -> None:
    answer = next_reservation(protected_claim(**owner), requirement, NOW, TIMEOUT)
    assert isinstance(answer, Status)
    assert (answer.code, answer.reason) == (Code.FATAL, Reason.DEVICE_CONFLICT)


def test_the_conflict_with_another_group_names_it_and_does_not_advise_to_delete_its_claim() -> None:
    requirement = required_claim(allocation(), is_generated=True, shared_by=GROUP_REFERENCE)
    answer = next_reservation(protected_claim(**group_owner("other", "other-uid")), requirement, NOW, TIMEOUT)
    assert isinstance(answer, Status)
    assert "belongs to PodGroup other (UID " in answer.message
    assert "delete" not in answer.message


RELEASE = [
    pytest.param([GROUP_REFERENCE], None, id="the group's reservation stays: its other pods may run"),
    pytest.param([user(), GROUP_REFERENCE], ClaimStatus({"allocation": TIMED, "reservedFor": [GROUP_REFERENCE]}),
        id="an entry of the pod itself goes"),
]  # fmt: skip


@pytest.mark.parametrize("shared_by", [GROUP_REFERENCE, None])
@pytest.mark.parametrize(("reserved_for", "expected"), RELEASE)
def test_a_rollback_leaves_what_the_group_has(
    reserved_for: list[Any], expected: Any, shared_by: dict[str, Any] | None
) -> None:
    """Whether or not the rollback knows that the claim is the group's."""
    stored = protected_claim({"allocation": TIMED, "reservedFor": reserved_for}, **group_owner())
    assert next_release(stored, required_claim(allocation(), shared_by=shared_by)) == expected


UNUSED = [
    pytest.param([GROUP_REFERENCE], True, id="reserved for the group alone"),
    pytest.param([user(), GROUP_REFERENCE], False, id="another entry"),
    pytest.param([user()], False, id="of a pod alone, with other devices"),
]


@pytest.mark.parametrize(("reserved_for", "is_freed"), UNUSED)
def test_a_claim_that_no_pod_of_the_group_has_is_freed_whatever_was_decided(
    reserved_for: list[Any], is_freed: bool
) -> None:
    stored = protected_claim({"allocation": TIMED, "reservedFor": reserved_for}, **group_owner())
    other_decision = required_claim(allocation(result("d7")), shared_by=GROUP_REFERENCE)
    write = next_release(stored, other_decision, is_group_used=False)
    assert write == (ClaimStatus({}) if is_freed else None)
    assert next_release(stored, other_decision) is None


class BoundBetweenLists:
    """A namespace in which the other pod of the group is bound, and its request succeeds, after the first list."""

    def __init__(self) -> None:
        self.lists = 0

    async def list_reduced(self, selection: Selection, reduce: Callable[[Any], Any]) -> list[Any]:
        is_bound, self.lists = self.lists > 0, self.lists + 1
        request = {"spec": {"podName": "other"}, "status": {"phase": "Succeeded" if is_bound else "Pending"}}
        member = pod(name="other", nodeName="node-0" if is_bound else None, **IN_GROUP)
        member["metadata"]["uid"] = "other-uid"
        return [reduce(request if selection.resource is BINDREQUESTS else member)]


class UnreadablePod:
    """A namespace with a pod of which only the metadata can be read."""

    async def list_reduced(self, selection: Selection, reduce: Callable[[Any], Any]) -> list[Any]:
        reduced_pod = {"metadata": {"name": "other", "uid": "other-uid"}}
        return [] if selection.resource is BINDREQUESTS else [reduce(reduced_pod)]


def test_a_pod_that_is_bound_while_the_users_of_the_group_are_listed_is_one() -> None:
    namespace = cast("ObjectClient", BoundBetweenLists())
    assert asyncio.run(is_group_used(namespace, pod(**IN_GROUP), False))


def test_a_pod_that_cannot_be_read_may_be_one_of_the_group() -> None:
    namespace = cast("ObjectClient", UnreadablePod())
    assert asyncio.run(is_group_used(namespace, pod(**IN_GROUP), False))
