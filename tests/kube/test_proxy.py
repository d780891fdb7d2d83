"""The fault proxy in front of the real API server: what its client receives, and what the API server has done."""

import pytest

from bowline.kube.client import KubeClient
from bowline.kube.errors import Conflict, NoResponse, TooManyRequests
from bowline.kube.resources import CONFIGMAPS
from bowline.testing.builders import configmap
from bowline.testing.fault_proxy.faults import DropBefore, Fault, FaultAnswer, LoseReply
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy


@pytest.mark.parametrize(
    ("fault", "error", "outcome", "is_executed"),
    [
        pytest.param(DropBefore(), NoResponse, "not forwarded (DropBefore)", False, id="dropped before it arrived"),
        pytest.param(LoseReply(), NoResponse, "201, reply lost", True, id="executed, reply lost"),
        pytest.param(FaultAnswer(409), Conflict, "not forwarded (FaultAnswer)", False, id="409 instead"),
        pytest.param(FaultAnswer(429, 7), TooManyRequests, "not forwarded (FaultAnswer)", False, id="429 instead"),
    ],
)
async def test_a_fault_changes_one_reply_and_the_execution_as_stated(
    client: KubeClient,
    proxy: FaultProxy,
    proxy_client: KubeClient,
    namespace: str,
    *,
    fault: Fault,
    error: type[Exception],
    outcome: str,
    is_executed: bool,
) -> None:
    # The connection is already open, as in a running process.
    await proxy_client.list(CONFIGMAPS, namespace)
    proxy.add(FaultRule(fault, CallMatch(("create",), "configmaps"), nth=1))
    with pytest.raises(error) as failure:
        await proxy_client.create(CONFIGMAPS, namespace, configmap("x"))
    assert proxy.exchanges()[-1].outcome == outcome
    if isinstance(failure.value, TooManyRequests):
        assert failure.value.retry_after is not None
        assert failure.value.retry_after.total_seconds() == 7
    await proxy_client.create(CONFIGMAPS, namespace, configmap("y"))
    stored = {item["metadata"]["name"] for item in await client.list_all(CONFIGMAPS, namespace)}
    assert stored == ({"x", "y"} if is_executed else {"y"})
