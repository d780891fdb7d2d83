"""The content of a Lease."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.kube.lease import (
    account_owners,
    is_earlier_term,
    may_have_left_writes,
    new_identity,
    spec_of_holder,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = "2026-01-02T03:04:05.000000Z"
OLD = "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("before", "acquired", "transitions"),
    [
        pytest.param({}, STAMP, 0, id="a new lease"),
        pytest.param({"holderIdentity": "me", "acquireTime": OLD, "leaseTransitions": 4}, OLD, 4,
            id="a renewal keeps the rest"),
        pytest.param({"holderIdentity": "you", "acquireTime": OLD, "leaseTransitions": 4}, STAMP, 5, id="taken over"),
        pytest.param({"holderIdentity": "", "leaseTransitions": 4}, STAMP, 5, id="acquired after a release"),
        pytest.param({"holderIdentity": "you"}, STAMP, 1, id="a record without a count"),
    ],
)  # fmt: skip
def test_claims(before: dict[str, Any], acquired: str, transitions: int) -> None:
    assert spec_of_holder(before, "me", NOW, timedelta(seconds=14.2)) == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": acquired,
        "renewTime": STAMP,
        "leaseTransitions": transitions,
    }


POD = {"POD_NAME": "bowline-0", "POD_UID": "0b1c"}


@pytest.mark.parametrize(
    ("environ", "pid", "prefix"),
    [
        pytest.param(POD, 1, "bowline-0_0b1c_", id="the first process of a container"),
        pytest.param(POD, 7, "bowline-0_", id="a process that kubectl exec starts"),
        pytest.param({"POD_NAME": "bowline-0"}, 1, "bowline-0_", id="a pod without its UID"),
    ],
)
def test_identity_has_the_pod_uid_where_it_is_proof(environ: dict[str, str], pid: int, prefix: str) -> None:
    first_identity, second_identity = new_identity(environ, pid), new_identity(environ, pid)
    assert first_identity != second_identity
    for identity in (first_identity, second_identity):
        assert identity.startswith(prefix)
        assert identity.count("_") == prefix.count("_")


@pytest.mark.parametrize(
    ("holder", "expectation"),
    [
        pytest.param("bowline-0_0b1c_one", True, id="the same pod, an earlier process"),
        pytest.param("bowline-0_0b1c_two", False, id="itself"),
        pytest.param("bowline-0_ffff_one", False, id="a pod of the same name and another UID"),
        pytest.param("bowline-1_0b1c_one", False, id="another pod"),
        pytest.param("bowline-0_one", False, id="an identity without the UID"),
        pytest.param("", False, id="no holder"),
    ],
)
def test_holder_has_ended_if_it_led_for_the_same_container(holder: str, expectation: bool) -> None:
    assert is_earlier_term(holder, "bowline-0_0b1c_two") is expectation


@pytest.mark.parametrize("holder", ["bowline-0_one", "bowline-0_0b1c_one"])
def test_identity_without_the_pod_uid_proves_nothing(holder: str) -> None:
    assert not is_earlier_term(holder, "bowline-0_two")


@pytest.mark.parametrize(
    ("user", "expectation"),
    [
        pytest.param({"username": "system:serviceaccount:ns:name", "uid": "u"}, [{"apiVersion": "v1",
            "kind": "ServiceAccount", "name": "name", "uid": "u"}], id="its ServiceAccount"),
        pytest.param({"username": "system:serviceaccount:other:name", "uid": "u"}, [], id="of another namespace"),
        pytest.param({"username": "system:serviceaccount:ns:name"}, [], id="without a UID"),
        pytest.param({"username": "admin", "uid": "u"}, [], id="a user"),
        pytest.param({}, [], id="nothing"),
    ],
)  # fmt: skip
def test_lease_is_owned_by_a_service_account_of_its_namespace(user: dict[str, Any], expectation: list[Any]) -> None:
    assert account_owners(user, "ns") == expectation


RENEWED = "2026-01-01T00:00:00.000000Z"
RENEWED_AT = datetime(2026, 1, 1, tzinfo=UTC)
RELEASED = {"holderIdentity": "", "renewTime": RENEWED}
ANSWERED = {names.WRITES_ANSWERED: RENEWED}
OF_AN_EARLIER_RELEASE = {names.WRITES_ANSWERED: "2025-12-31T00:00:00.000000Z"}


@pytest.mark.parametrize(
    ("spec", "annotations", "after", "expectation"),
    [
        pytest.param({}, {}, timedelta(0), False, id="nobody has held it"),
        pytest.param({"holderIdentity": "a", "renewTime": RENEWED}, {}, timedelta(seconds=20), True, id="a crash"),
        pytest.param({"holderIdentity": "a"}, {}, timedelta(0), True, id="held, since an unknown time"),
        pytest.param({"holderIdentity": "a", "renewTime": RENEWED}, ANSWERED, timedelta(0), True, id="held again"),
        pytest.param(RELEASED, {}, timedelta(0), True, id="released by a version that records nothing"),
        pytest.param(RELEASED, OF_AN_EARLIER_RELEASE, timedelta(0), True, id="the record of an earlier release"),
        pytest.param(RELEASED, ANSWERED, timedelta(0), False, id="released, with its record"),
        pytest.param(RELEASED, {}, timedelta(minutes=31), True, id="clocks may differ by half an hour"),
        pytest.param(RELEASED, {}, timedelta(minutes=32), False, id="long ago"),
        pytest.param(RELEASED, {}, timedelta(minutes=-20), True, id="by a clock that is ahead"),
    ],
)
def test_whether_a_former_holder_may_have_left_writes(
    spec: dict[str, Any], annotations: dict[str, str], after: timedelta, expectation: bool
) -> None:
    lease = {"metadata": {"annotations": annotations}, "spec": spec}
    assert may_have_left_writes(lease, RENEWED_AT + after, timedelta(minutes=1)) is expectation
