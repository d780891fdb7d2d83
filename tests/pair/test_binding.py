"""From a BindRequest to a bound pod that runs, and a reconciler with a pod's own credentials."""

from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.podsplace import has_pods_place
from bowline.localcluster.workload import WorkloadOptions
from tests.live import Live


def conditions(obj: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in (obj.get("status") or {}).get("conditions") or ()}


def test_a_request_becomes_a_bound_pod(pair: Live) -> None:
    uid = pair.create_pod()
    pair.request_bind()
    request = pair.phase("pod", "Succeeded")
    bound = pair.pod()
    assert bound["spec"]["nodeName"] == "gpu-node-0"
    assert bound["metadata"]["uid"] == uid
    assert bound["metadata"]["annotations"][names.RECEIVED_RESOURCE_TYPE] == "Regular"
    assert request["status"]["nodeName"] == "gpu-node-0"
    assert conditions(request) == {"Prepared": "True", "Bound": "True"}
    assert "reason" not in request["status"]
    assert "failedAttempts" not in request["status"]
    assert not request["metadata"].get("finalizers")
    pair.event("pod", "Bound")
    # kwok acts as the kubelet: the pod starts there.
    pair.until("the pod runs", lambda: pair.pod()["status"]["phase"] == "Running" or None)


@pytest.mark.skipif(not has_pods_place(), reason="needs a mount namespace, which this machine does not allow")
def test_a_pods_own_credentials_are_sufficient(pair: Live) -> None:
    standby = pair.pair.launch_reconciler(WorkloadOptions(name="in-a-pods-place", in_pod=True))
    try:
        standby.wait_ready()
        assert standby.kubeconfig is None
        assert not Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists(), (
            "the files must not be visible outside"
        )
        _, page = standby.get("/metrics?name[]=bowline_reflector_relists_total")
        assert 'bowline_reflector_relists_total{resource="bindrequests"} 1.0' in page
    finally:
        standby.stop()
        pair.pair.reconcilers.remove(standby)
