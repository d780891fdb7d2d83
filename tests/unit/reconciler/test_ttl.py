"""Which completed requests the TTL controller deletes."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiStatus, ConnectionFailed, InfrastructureError, NoResponse, ServerError
from bowline.kube.resources import Resource, Selection
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.term.ttl import TTLController, is_due

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def completed(status: dict[str, Any], owner: str = "pod-uid", **metadata: Any) -> dict[str, Any]:
    return stored(bind_request(uid=owner), **metadata) | {"status": {"phase": "Succeeded", **status}}


def shared(status: dict[str, Any], groups: list[str], owner: str = "pod-uid") -> dict[str, Any]:
    raw = completed(status, owner=owner)
    raw["spec"] |= {"receivedResourceType": "Fraction", "selectedGPUGroups": groups}
    return raw


OLD, NEW = {"completionTime": "2026-01-01T10:59:59Z"}, {"completionTime": "2026-01-01T11:00:01Z"}
WRITTEN = [{"time": "2026-01-01T10:00:00Z"}, {"time": "2026-01-01T11:30:00Z"}]


@pytest.mark.parametrize(
    ("request_", "due"),
    [
        pytest.param(completed(OLD), True, id="after the TTL"),
        pytest.param(completed(NEW), False, id="before the TTL"),
        pytest.param(shared(OLD, ["a", "b"]), False, id="several groups: a scheduler reads the devices"),
        pytest.param(shared(OLD, ["a"]), True, id="one group: the pod's label has it"),
        pytest.param(shared(OLD, ["a", "b"], owner=""), True, id="several groups, no owner"),
        pytest.param(completed(OLD | {"phase": "Failed"}), False, id="Failed, with an owner: deleted with its pod"),
        pytest.param(completed(OLD | {"phase": "Failed"}, owner=""), True, id="Failed, no owner"),
        pytest.param(completed(OLD | {"phase": "Failed"}, owner="", finalizers=[names.FINALIZER]), False,
            id="Failed, not rolled back"),
        pytest.param(completed(OLD | {"phase": "Pending"}), False, id="Pending"),
        pytest.param(completed(OLD | {"phase": "Pending"}, owner=""), False, id="Pending, no owner"),
        pytest.param(completed(OLD, finalizers=["example.com/keep"]), False, id="held by another finalizer"),
        pytest.param(completed(OLD, deletionTimestamp="2026-01-01T11:00:00Z"), False, id="being deleted"),
        pytest.param(completed({}), False, id="no completion time"),
        pytest.param(completed({"completionTime": "9999-12-31T23:59:59Z"}), False, id="the latest time"),
        pytest.param(completed({"completionTime": "0001-01-01T00:00:00+01:00"}), False, id="the earliest time"),
        pytest.param(completed({}, managedFields=WRITTEN), False, id="foreign CRD: the newest write counts"),
        pytest.param(completed({}, managedFields=WRITTEN[:1]), True, id="foreign CRD: last written before the TTL"),
    ],
)  # fmt: skip
def test_is_due(request_: dict[str, Any], due: bool) -> None:
    assert is_due(request_, HOUR, NOW) is due


class Failing(KubeClient):
    """The deletes of namespace ``a`` have no result, as while a webhook for it is down."""

    def __init__(self, requests: list[dict[str, Any]], error: InfrastructureError) -> None:
        self.requests, self.error, self.deletes = requests, error, list[str]()

    async def pages(self, selection: Selection, page_size: int = 1) -> AsyncGenerator[dict[str, Any], None]:
        for raw in self.requests if "Succeeded" in selection.field_selector else ():
            yield {"items": [raw]}

    async def delete(self, resource: Resource, namespace: str, name: str, **guards: Any) -> dict[str, Any]:
        self.deletes.append(f"{namespace}/{name}")
        if namespace == "a":
            raise self.error
        return {}


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("error", "is_of_namespace"),
    [
        pytest.param(ServerError("failed calling webhook"), True, id="its webhook is down"),
        pytest.param(NoResponse("no answer in time"), True, id="its webhook hangs"),
        pytest.param(ServerError("busy", ApiStatus(503, retry_after=HOUR)), False, id="the API server wants a pause"),
        pytest.param(ConnectionFailed("not sent: this process no longer leads"), False, id="nothing can be sent"),
    ],
)
async def test_deletes_of_one_namespace_that_fail_stop_no_other_one(
    error: InfrastructureError, is_of_namespace: bool
) -> None:
    old = [completed(OLD, name=name, namespace=namespace) for namespace, name in (("a", "1"), ("a", "2"), ("b", "1"))]
    client = Failing(old, error)
    round_ = TTLController(client, HOUR, SteppedClock(NOW)).round()
    if is_of_namespace:
        assert await round_ == 1
    else:
        with pytest.raises(type(error)):
            await round_
    assert client.deletes == (["a/1", "b/1"] if is_of_namespace else ["a/1"])
