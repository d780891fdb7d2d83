"""Which of several requests for one pod begins first, and that one which has begun holds the pod."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.binding.state import RequestStates

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
OURS: dict[str, Any] = {"finalizers": [names.FINALIZER]}
DELETING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:30Z"}


def request(
    name: str, created: str, phase: str = "", uid: str = "pod-uid", started: str = "", **metadata: Any
) -> BindRequest:
    raw = stored(bind_request(name, podName="pod", podUID=uid), uid=name, creationTimestamp=created, **metadata)
    return decode_bind_request(raw | {"status": {"phase": phase, "startTime": started}})


@pytest.mark.parametrize(
    ("rival", "unfinished"),
    [
        pytest.param(request("other", EARLY, "Succeeded"), False, id="it has succeeded"),
        pytest.param(request("other", EARLY, "Failed"), False, id="it has failed"),
        pytest.param(request("other", EARLY, "Failed", **OURS), True, id="it has failed, its rollback is pending"),
        pytest.param(request("other", EARLY, **DELETING), False, id="it is being deleted, no rollback"),
        pytest.param(request("other", EARLY, **DELETING, **OURS), True, id="it is being rolled back"),
        pytest.param(request("other", EARLY, "Failed", finalizers=["example.com/keep"]), False,
            id="it has a foreign finalizer"),
    ],
)  # fmt: skip
def test_what_is_waited_for(rival: BindRequest, *, unfinished: bool) -> None:
    assert rival.is_unfinished is unfinished


class Released:
    """The states of cached requests for one pod, and which of them were woken because it is free."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.cached: list[BindRequest] = []
        self.states = RequestStates(
            rivals=lambda pod_key, pod_uid: [each for each in self.cached if each.pod_id == (pod_key, pod_uid)],
            wake=lambda key: self.woken.append(key.name),
        )

    def add(self, *requests: BindRequest) -> None:
        self.cached.extend(requests)
        for each in requests:
            self.states.ensure(each)


def test_a_request_that_has_begun_holds_the_pod_whatever_the_order_says() -> None:
    released, first, second = Released(), request("z", LATE), request("a", EARLY)
    released.add(first, second)
    assert released.states.acquire_pod(first)
    assert released.states.acquire_pod(first), "again: it holds the pod"
    assert not released.states.acquire_pod(second)
    assert released.states.holder_and_rivals(second)[0] == first.key
    state = released.states.get(first.key)
    assert state is not None
    released.states.release_pod(first.key, state)
    released.states.release_pod(first.key, state)
    assert released.woken == ["a"], "once"
    assert released.states.acquire_pod(second)
