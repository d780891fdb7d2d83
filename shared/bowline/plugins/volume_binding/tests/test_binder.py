"""What the binder answers for a PVC that its owner has spoilt, or that the API server does not return."""

import asyncio
from typing import Any, cast

import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.framework.interface.status import Fatal, Status, Waiting
from bowline.kube.errors import (
    ApiError,
    ApiStatus,
    BadRequest,
    Forbidden,
    KubeError,
    NotFound,
    NotStoredError,
)
from bowline.plugins.volume_binding.binder import BindState, VolumeBinder
from bowline.plugins.volume_binding.storage import Storage
from bowline.plugins.volume_binding.tests.builders import raw_claim
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock

POD = {
    "metadata": {"namespace": "ns", "name": "pod", "uid": "pod-uid"},
    "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
}
NODE = {"metadata": {"name": "node-0", "uid": "node-uid", "resourceVersion": "1", "labels": {}}}
CLASS = {"metadata": {"name": "late"}, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"}


class Cluster:
    """A node, a class and a PVC, which is returned or raised."""

    clock = SteppedClock()

    def __init__(self, claim: dict[str, Any] | ApiError) -> None:
        self._claim = claim
        self.patches: list[dict[str, Any]] = []

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        if resource.plural == "nodes" and name != "node-0":
            raise BadRequest(ApiStatus(400)) if "/" in name else NotFound(ApiStatus(404))
        if resource.plural != "persistentvolumeclaims":
            return CLASS if resource.plural == "storageclasses" else NODE
        if isinstance(self._claim, ApiError):
            raise self._claim
        return self._claim

    async def list_reduced(self, selection: Any, reduce: Any) -> list[Any]:
        return []

    async def patch(self, resource: Any, namespace: str, name: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.patches.append(body)
        return raw_claim(annotations=body["metadata"]["annotations"])


def status_for(cluster: Cluster) -> Status:
    client = cast(Any, cluster)
    binder = VolumeBinder(client, Storage(client, cluster.clock), None)
    request = decode_bind_request(stored(bind_request()))
    return asyncio.run(binder.bind_pod_volumes(request, POD, NODE, BindState()))


@pytest.mark.parametrize("name", ["gone", "../x", "X"])
def test_a_volume_requested_on_no_possible_node_is_requested_again(name: str) -> None:
    cluster = Cluster(raw_claim(annotations={names.SELECTED_NODE: name}))
    assert isinstance(status_for(cluster), Waiting)
    assert [patch["metadata"]["annotations"][names.SELECTED_NODE] for patch in cluster.patches] == ["node-0"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(BadRequest(ApiStatus(400, message="no")), Fatal, id="a refusal of the call"),
        pytest.param(ApiError(ApiStatus(404, message="no")), Fatal, id="a resource that is not served"),
    ],
)
def test_a_decision_of_the_api_server_is_a_result(error: ApiError, kind: type[Status]) -> None:
    assert type(status_for(Cluster(error))) is kind


KEPT = [NotStoredError("the annotation is put back", {}), Forbidden(ApiStatus(403, message="denied by a policy"))]


@pytest.mark.parametrize("error", KEPT)
async def test_a_claim_whose_node_a_policy_keeps_keeps_no_other_from_being_withdrawn(error: KubeError) -> None:
    request = decode_bind_request(stored(bind_request()))
    written: list[str] = []

    class Policy(Cluster):
        async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
            return raw_claim(name, annotations={names.SELECTED_NODE: "node-0", names.PREPARED_FOR: request.uid})

        async def patch(self, resource: Any, namespace: str, name: str, body: Any, **_: Any) -> dict[str, Any]:
            written.append(name)
            if name == "data":
                raise error
            return raw_claim(name)

    cluster = Policy(raw_claim())
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("data", "more")]
    binder = VolumeBinder(cast(Any, cluster), Storage(cast(Any, cluster), cluster.clock), None)
    with pytest.raises(type(error)):
        await binder.withdraw(request, {**POD, "spec": {"volumes": claims}})
    assert written == ["data", "more"]


def test_a_request_to_a_provisioner_that_is_stored_otherwise_is_withdrawn() -> None:
    class Webhook(Cluster):
        async def patch(self, *args: Any, **_: Any) -> dict[str, Any]:
            self.patches.append(args[-1])
            if len(self.patches) == 1:
                raise NotStoredError("another node", raw_claim(annotations={names.SELECTED_NODE: "other"}))
            return raw_claim()

    cluster = Webhook(raw_claim())
    with pytest.raises(NotStoredError):
        status_for(cluster)
    nodes = [patch["metadata"]["annotations"][names.SELECTED_NODE] for patch in cluster.patches]
    assert nodes == ["node-0", None]


@pytest.mark.parametrize(("requested_by", "nodes"), [("request-uid", [None]), ("other", [])])
async def test_a_failure_withdraws_what_its_own_request_has_asked_of_a_provisioner(
    requested_by: str, nodes: list[None]
) -> None:
    request = decode_bind_request(stored(bind_request(), "request-uid"))
    cluster = Cluster(raw_claim(annotations={names.SELECTED_NODE: "node-0", names.PREPARED_FOR: requested_by}))
    binder = VolumeBinder(cast(Any, cluster), Storage(cast(Any, cluster), cluster.clock), None)
    await binder.withdraw(request, POD)
    assert [patch["metadata"]["annotations"][names.SELECTED_NODE] for patch in cluster.patches] == nodes
