"""Which of several requests for one pod precedes: their attempts and rollbacks are serial."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.decide.snapshot import preceding_request

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
OURS: dict[str, Any] = {"finalizers": [names.FINALIZER]}
DELETING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:30Z"}


def request(name: str, created: str, phase: str = "", uid: str = "pod-uid", **metadata: Any) -> BindRequest:
    raw = stored(bind_request(name, podName="pod", podUID=uid), uid=name, creationTimestamp=created, **metadata)
    return decode_bind_request(raw | {"status": {"phase": phase}})


MINE = request("mine", LATE)


@pytest.mark.parametrize(
    ("mine", "rivals", "first"),
    [
        pytest.param(MINE, [], None, id="it is alone"),
        pytest.param(MINE, [request("other", EARLY)], "other", id="an older one is unfinished"),
        pytest.param(request("mine", EARLY), [request("other", LATE)], None, id="it is the older one"),
        pytest.param(MINE, [request("a", LATE)], "a", id="of the same second: by name"),
        pytest.param(MINE, [request("z", LATE)], None, id="of the same second: by name, the other way round"),
        pytest.param(MINE, [request("b", EARLY), request("a", EARLY)], "a", id="the first of several"),
        pytest.param(MINE, [request("other", EARLY, uid="another")], None, id="of another pod of that name"),
        pytest.param(MINE, [request("other", EARLY, "Succeeded")], None, id="the older one has succeeded"),
        pytest.param(MINE, [request("other", EARLY, "Failed")], None, id="the older one has failed"),
        pytest.param(
            MINE,
            [request("other", EARLY, "Failed", **OURS)],
            "other",
            id="the older one has failed and its rollback is pending",
        ),
        pytest.param(
            MINE, [request("other", EARLY, **DELETING)], None, id="the older one is being deleted, no rollback"
        ),
        pytest.param(
            MINE, [request("other", EARLY, **DELETING, **OURS)], "other", id="the older one is being rolled back"
        ),
        pytest.param(
            MINE,
            [request("other", EARLY, "Failed", finalizers=["example.com/keep"])],
            None,
            id="the older one has a foreign finalizer",
        ),
        pytest.param(
            request("mine", LATE, **DELETING, **OURS),
            [request("other", EARLY)],
            "other",
            id="a rollback waits as well",
        ),
    ],
)
def test_the_preceding_request(mine: BindRequest, rivals: list[BindRequest], first: str | None) -> None:
    found = preceding_request(mine, [mine, *rivals])
    assert found == (ObjectKey("default", first) if first else None)
