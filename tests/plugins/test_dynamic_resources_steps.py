"""The plugin's own steps against a real API server: races, missing rights, old clusters.

The plugin is called as the Runner calls it, with its own client. The pair that runs on the cluster has no request.
"""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, uid_of
from bowline.framework.binding.post import denied_status
from bowline.framework.interface.status import Done, Fatal, Status, Waiting
from bowline.framework.reason import Reason
from bowline.kube.binding import post_binding
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import Invalid
from bowline.kube.resources import RESOURCECLAIMS, Resource
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair
from tests.live import LiveCluster
from tests.plugins.claim_case import Case, new_plugin
from tests.plugins.claims import NODE, claim, claim_decisions, publish, reserved_by

EXTENDED = "gpu.example.com/gpu"
LIMITED = [{"name": "main", "image": "registry.example/app:1", "resources": {"limits": {EXTENDED: "1"}}}]
CLAIMED = [{"name": "dev", "resourceClaimName": "one"}]
FAILED = Status.fatal("failed by the test")


@pytest.fixture
def cluster(pair_cluster: tuple[Cluster, Pair]) -> Cluster:
    """The control plane of the pair."""
    return pair_cluster[0]


@pytest.fixture
async def case(cluster: Cluster) -> AsyncIterator[Case]:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(namespace)
    publish(cluster)
    client = KubeClient(load_access(api_server(cluster.kubeconfig)))
    async with client:
        yield Case(client, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


async def test_a_pod_waits_for_devices_that_become_ready_and_a_rollback_releases_them(case: Case) -> None:
    plugin = await new_plugin(case.client)
    await case.create(claim("one"))
    created_pod = await case.pod(resourceClaims=CLAIMED)

    async def consumers() -> int:
        (stored_claim,) = await case.claims()
        return len(stored_claim["status"].get("reservedFor") or ())

    context = await case.context(
        created_pod, **claim_decisions("d0", bindingConditions=["ready"], bindingFailureConditions=["bad"])
    )
    for _ in range(2):
        assert isinstance(await plugin.pre_bind(context), Waiting)
    assert await consumers() == 1
    condition = {"type": "ready", "status": "True", "reason": "Test", "message": ""}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    device = {"driver": "dra.example.com", "pool": NODE, "device": "d0", "conditions": [condition]}
    await case.client.patch(
        RESOURCECLAIMS, case.namespace, "one", {"status": {"devices": [device]}}, subresource="status"
    )
    for _ in range(2):
        assert await plugin.pre_bind(context) == Status.ok()
    assert await plugin.rollback(context, FAILED) == Status.ok()
    assert await consumers() == 0


async def test_the_claim_of_a_namesake_or_of_a_bound_pod_is_not_touched(case: Case) -> None:
    await case.create(claim("one"))
    created_pod = await case.pod(resourceClaims=CLAIMED)
    plugin = await new_plugin(case.client)
    assert await plugin.pre_bind(await case.context(created_pod, **claim_decisions("d0"))) == Status.ok()
    predecessor = {
        **created_pod,
        "metadata": {**created_pod["metadata"], "uid": "11111111-2222-4333-8444-555555555555"},
    }
    assert await plugin.rollback(await case.context(predecessor, **claim_decisions("d0")), FAILED) == Status.ok()
    assert reserved_by(await case.claim()) == {created_pod["metadata"]["uid"]}
    key = ObjectKey(case.namespace, created_pod["metadata"]["name"])
    await post_binding(case.client, key, uid_of(created_pod), NODE, {})
    assert await plugin.rollback(await case.context(created_pod, **claim_decisions("d0")), FAILED) == Status.ok()
    assert reserved_by(await case.claim()) == {created_pod["metadata"]["uid"]}


async def test_a_missing_right_is_reported_as_such(case: Case, cluster: Cluster) -> None:
    """All rights but resourceclaims/binding; the API server reports its absence as an invalid object."""
    cluster.kubectl("create", "serviceaccount", "weak", "-n", case.namespace)
    verbs, resources = "get,list,update,patch", "resourceclaims.resource.k8s.io,resourceclaims.resource.k8s.io/status"
    role = f"weak-{case.namespace}"
    cluster.kubectl("create", "clusterrole", role, f"--verb={verbs}", f"--resource={resources}")
    account = f"--serviceaccount={case.namespace}:weak"
    cluster.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", account)
    user = f"system:serviceaccount:{case.namespace}:weak"
    LiveCluster(cluster, case.namespace).until_allowed(user, "update", "resourceclaims", group="resource.k8s.io")
    await case.create(claim("one"))
    created_pod = await case.pod(resourceClaims=CLAIMED)
    path = cluster.service_account_kubeconfig(case.namespace, "weak")
    async with KubeClient(load_access(api_server(path))) as client:
        plugin, context = await new_plugin(client), await case.context(created_pod, **claim_decisions("d0"))
        with pytest.raises(Invalid) as refusal:  # which is left to the framework
            await plugin.pre_bind(context)
    answer = denied_status(refusal.value.message)
    assert isinstance(answer, Fatal)
    assert answer.reason is Reason.RBAC_MISSING
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", role)


class OldClient(KubeClient):
    """Requests claims in a version that the API server does not serve, as before Kubernetes 1.34."""

    async def get(self, resource: Resource, *args: Any, **kwargs: Any) -> dict[str, Any]:
        requested_resource = replace(resource, version="v9") if resource == RESOURCECLAIMS else resource
        return await super().get(requested_resource, *args, **kwargs)

    async def serves(self, resource: Resource) -> bool:
        return await super().serves(replace(resource, version="v9") if resource == RESOURCECLAIMS else resource)


async def test_a_cluster_without_the_claim_api_differs_from_a_missing_claim(case: Case, cluster: Cluster) -> None:
    created_pod = await case.pod(resourceClaims=CLAIMED)
    context = await case.context(created_pod, **claim_decisions("d0"))
    assert isinstance(await (await new_plugin(case.client)).pre_bind(context), Waiting)
    async with OldClient(load_access(api_server(cluster.kubeconfig))) as client:
        plugin = await new_plugin(client)
        answer = await plugin.pre_bind(context)
        assert isinstance(answer, Fatal)
        assert answer.reason is Reason.NO_PLUGIN
        undoing = await plugin.rollback(context, answer)
        assert isinstance(undoing, Done)
        assert "are not read" in undoing.message, "what another API server has reserved is not called undone"
