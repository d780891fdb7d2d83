"""The content of a plugin's Status, and how several waits are joined."""

from datetime import timedelta
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.interface.status import Status, merge_waits
from bowline.framework.reason import Suggestion

CLAIM = ObjectRef("v1", "PersistentVolumeClaim", ObjectKey("team", "data"))
POD = ObjectRef("v1", "Pod", ObjectKey("team", "agent"))
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
ELSEWHERE, DELETE = Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.DELETE_POD


@pytest.mark.parametrize("duration", [timedelta(0), -SECOND])
def test_a_wait_rejects_durations_that_are_not_positive(duration: timedelta) -> None:
    with pytest.raises(ValueError, match="retry_after of a wait must be positive"):
        Status.wait("not ready", retry_after=duration)
    with pytest.raises(ValueError, match="timeout of a wait must be positive"):
        Status.wait("not ready", timeout=duration)


def test_waits_that_are_merged_twice_name_their_plugin() -> None:
    of_plugin = merge_waits([Status.wait("a", CLAIM), Status.wait("b", POD, timeout=SECOND)])
    merged = merge_waits([of_plugin.from_plugin("volumes"), Status.wait("c").from_plugin("claims")])
    assert merged.plugin == "volumes,claims"
    assert [(wait.plugin, wait.wake_on, wait.timeout) for wait in merged.waits] == [
        ("volumes", (CLAIM,), None),
        ("volumes", (POD,), SECOND),
        ("claims", (), None),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expectation"),
    [
        pytest.param({"retry_after": MINUTE}, {"retry_after": SECOND}, (SECOND, None, None), id="both poll"),
        pytest.param({"timeout": MINUTE}, {"timeout": SECOND}, (None, SECOND, None), id="two timeouts"),
        pytest.param({}, {"timeout": SECOND}, (None, SECOND, None), id="one timeout"),
        pytest.param({"timeout": MINUTE, "suggestion": DELETE}, {"timeout": SECOND, "suggestion": ELSEWHERE}, (None,
            SECOND, ELSEWHERE), id="the suggestion of the shorter wait"),
        pytest.param({"suggestion": DELETE}, {"timeout": SECOND}, (None, SECOND, DELETE), id="the only suggestion"),
    ],
)  # fmt: skip
def test_joined_waits_poll_and_expire_as_the_shortest_does(
    first: dict[str, Any],
    second: dict[str, Any],
    expectation: tuple[timedelta | None, timedelta | None, Suggestion | None],
) -> None:
    merged_wait = merge_waits([Status.wait("a", CLAIM, **first), Status.wait("b", POD, **second)])
    assert merged_wait.wake_on == (CLAIM, POD)
    assert (merged_wait.retry_after, merged_wait.timeout, merged_wait.suggestion) == expectation
