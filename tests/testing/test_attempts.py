"""The fixtures `bind_context` and `run_attempt`, and the builders, on a real API server."""

from typing import Any

import pytest

from bowline import (
    Done,
    Fatal,
    Status,
    Waiting,
)
from bowline.errors import NotFound
from bowline.kube.stored import is_stored
from bowline.localcluster.cluster import Cluster
from bowline.resources import CONFIGMAPS
from bowline.testing import builders
from bowline.testing.attempts import Attempts, BindContexts
from bowline.testing.fault_proxy.faults import FaultAnswer
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.testing.licence import SEATS, Licence
from tests.testing.wrong_plugins import RaisingInBind


async def test_an_attempt_binds_and_its_rollback_leaves_nothing(run_attempt: Attempts) -> None:
    async with run_attempt(Licence, pods=[builders.pod("mine")]) as attempt:
        assert isinstance(attempt.status, Done)
        assert attempt.errors == ()
        assert attempt.pod["spec"]["nodeName"] == attempt.request["spec"]["selectedNode"]
        assert attempt.pod["metadata"]["annotations"][SEATS] == "1"
        assert await attempt.client.get(CONFIGMAPS, attempt.namespace, "licence-mine")
        assert await attempt.roll_back() == Status.ok()
        with pytest.raises(NotFound):
            await attempt.client.get(CONFIGMAPS, attempt.namespace, "licence-mine")


async def test_an_attempt_reports_what_the_plugin_raises(run_attempt: Attempts) -> None:
    async with run_attempt(RaisingInBind) as attempt:
        assert isinstance(attempt.status, Waiting)
        assert attempt.errors == ("pre_bind: KeyError: 'seats'",)
        assert "nodeName" not in attempt.pod["spec"]


async def test_a_single_method_is_called_with_a_context(bind_context: BindContexts) -> None:
    async with bind_context(Licence, objects=[(CONFIGMAPS, builders.configmap("licence-pod"))]) as (plugin, ctx):
        assert (ctx.attempt, ctx.pod and ctx.pod["metadata"]["name"]) == (1, "pod")
        assert await plugin.pre_bind(ctx) == Status.ok(annotations={SEATS: "1"})


async def test_the_proxy_disturbs_the_requests_of_an_attempt(
    run_attempt: Attempts, bowline_fault_proxy: FaultProxy
) -> None:
    bowline_fault_proxy.add(FaultRule(FaultAnswer(403), CallMatch(("create",), "configmaps")))
    async with run_attempt(Licence) as attempt:
        # It is denied for this request: no defect of the plugin.
        assert (type(attempt.status), attempt.errors) == (Fatal, ())


STORED: dict[str, dict[str, Any]] = {
    "/api/v1/nodes": builders.node("built-node", 4, {"pool": "a"}, unschedulable=True),
    "/api/v1/namespaces": builders.namespace("built", team="a"),
    "/api/v1/namespaces/default/configmaps": builders.configmap("built", key="value"),
    "/api/v1/namespaces/default/pods": builders.pod("built"),
    "/api/v1/namespaces/default/persistentvolumeclaims": builders.persistent_volume_claim("built", "default"),
    "/api/v1/persistentvolumes": builders.persistent_volume("built", storageClassName="built"),
    "/apis/storage.k8s.io/v1/storageclasses": builders.storage_class("built", allowVolumeExpansion=True),
    "/apis/resource.k8s.io/v1/deviceclasses": builders.device_class("built.example.com"),
    "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims": builders.resource_claim("built", count=2),
    "/apis/resource.k8s.io/v1/resourceslices": builders.resource_slice("built-node"),
}


@pytest.mark.parametrize("collection", STORED)
def test_the_api_server_stores_what_a_builder_returns(bowline_cluster: Cluster, collection: str) -> None:
    body = STORED[collection]
    stored = bowline_cluster.api.post(f"{collection}?fieldValidation=Strict", body)
    try:
        assert is_stored(body, stored)
    finally:
        bowline_cluster.api.delete(f"{collection}/{body['metadata']['name']}")
