"""What is written into a Lease."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared.kube.lease import claimed, holder_of, new_identity, released

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = "2026-01-02T03:04:05.000000Z"
OLD = "2026-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("before", "acquired", "transitions"),
    [
        pytest.param({}, STAMP, 0, id="a new lease"),
        pytest.param(
            {"holderIdentity": "me", "acquireTime": OLD, "leaseTransitions": 4}, OLD, 4, id="a renewal keeps the rest"
        ),
        pytest.param(
            {"holderIdentity": "you", "acquireTime": OLD, "leaseTransitions": 4}, STAMP, 5, id="taken from another"
        ),
        pytest.param({"holderIdentity": "", "leaseTransitions": 4}, STAMP, 5, id="taken after a release"),
        pytest.param({"holderIdentity": "you"}, STAMP, 1, id="a record without a count"),
    ],
)
def test_claims(before: dict[str, Any], acquired: str, transitions: int) -> None:
    assert claimed(before, "me", NOW, timedelta(seconds=14.2)) == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": acquired,
        "renewTime": STAMP,
        "leaseTransitions": transitions,
    }


def test_a_release_names_nobody_and_keeps_the_count() -> None:
    spec = released({"holderIdentity": "me", "leaseTransitions": 4, "acquireTime": OLD}, NOW)
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("", 4, 1)


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        pytest.param({"spec": {"holderIdentity": "me"}}, "me", id="held"),
        pytest.param({"spec": {"holderIdentity": None}}, "", id="null"),
        pytest.param({"spec": None}, "", id="an empty spec"),
        pytest.param({}, "", id="no spec"),
    ],
)
def test_holder(lease: dict[str, Any], expected: str) -> None:
    assert holder_of(lease) == expected


def test_identities_differ_between_lives_of_one_pod() -> None:
    one, two = new_identity({"POD_NAME": "bowline-0"}), new_identity({"POD_NAME": "bowline-0"})
    assert one != two
    assert one.startswith("bowline-0_")
    assert new_identity({}).split("_")[0]
