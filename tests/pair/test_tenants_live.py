"""What a user with the role edit in one namespace cannot do to the others, with the chart and both processes."""

from collections.abc import Iterator
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.errors import LocalApiError
from tests.live import Live

SELECTOR = names.SHARD_SELECTOR


@pytest.fixture
def tenant(pair: Live) -> Iterator[Any]:
    """A client as an account that has the role edit in the namespace."""
    pair.kubectl("create", "serviceaccount", "tenant")
    pair.kubectl("create", "rolebinding", "tenant", "--clusterrole=edit", f"--serviceaccount={pair.namespace}:tenant")
    user = f"system:serviceaccount:{pair.namespace}:tenant"
    pair.until_allowed(user, "create", "leases", group="coordination.k8s.io")
    client = pair.cluster.api_as(user)
    yield client
    client.close()


def forged_lease(**metadata: Any) -> dict[str, Any]:
    """A Lease that claims to serve all requests, for ever and since ever."""
    lease_metadata = {
        "name": "stop",
        "labels": {names.SHARD_LABEL: "cluster"},
        "annotations": {SELECTOR: ""},
        **metadata,
    }
    held = {
        "holderIdentity": "nobody",
        "acquireTime": "1970-01-01T00:00:00.000000Z",
        "leaseDurationSeconds": 2**31 - 1,
    }
    return {"metadata": lease_metadata, "spec": held}


def leases(pair: Live) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{pair.namespace}/leases"


def test_a_tenant_writes_no_lease_of_a_reconciler(pair: Live, tenant: Any) -> None:
    with pytest.raises(LocalApiError, match="only an account that may write the status of BindRequests"):
        tenant.post(leases(pair), forged_lease())
    tenant.post(leases(pair), forged_lease(labels={}))
    change = {"metadata": {"labels": {names.SHARD_LABEL: "cluster"}}}
    with pytest.raises(LocalApiError, match="only an account that may write the status of BindRequests"):
        tenant.request("PATCH", f"{leases(pair)}/stop", change, "application/merge-patch+json")


def test_a_forged_lease_from_before_the_policy_stops_no_reconciler(pair: Live, tenant: Any) -> None:
    account = pair.cluster.api.get(f"/api/v1/namespaces/{pair.namespace}/serviceaccounts/tenant")
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "tenant", "uid": account["metadata"]["uid"]}
    # As the administrator, whom the policy lets pass.
    pair.cluster.api.post(leases(pair), forged_lease())
    pair.cluster.api.post(leases(pair), forged_lease(name="owned", ownerReferences=[owner]))
    assert pair.pair.reconcilers[0].stop()
    pair.pair.launch_reconciler().wait_ready()
    pair.create_pod()
    pair.request_bind()
    pair.phase("pod", "Succeeded")
