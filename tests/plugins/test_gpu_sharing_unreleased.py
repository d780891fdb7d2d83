"""An unused device that cannot be released: it delays the pods that need a device of its node, and no others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bowline.localcluster.errors import LocalApiError
from tests.plugins.series import Series
from tests.plugins.sharing import RESERVATIONS, Shares, reservation

# As KAI-Scheduler's binder named them up to v0.15: the name shows the node.
NAME = "gpu-reservation-gpu-node-0-x7k2p"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
WHOLE: dict[str, Any] = {"receivedGPU": {"count": 1, "portion": "1.00"}}


@contextmanager
def denial(shares: Shares) -> Iterator[None]:
    """A policy of the cluster denies the delete; the API server applies it inside the block."""
    policy = {
        "metadata": {"name": "keep"},
        "spec": {
            "matchConstraints": {"resourceRules": [RULE]},
            "validations": [{"expression": f"oldObject.metadata.name != '{NAME}'", "message": "it is kept"}],
        },
    }
    binding = {"metadata": {"name": "keep"}, "spec": {"policyName": "keep", "validationActions": ["Deny"]}}
    shares.api.post(f"{ADMISSION}/validatingadmissionpolicies", policy)
    shares.api.post(f"{ADMISSION}/validatingadmissionpolicybindings", binding)
    try:
        shares.live.until("the delete is denied", lambda: "it is kept" in refusal(shares))
        yield
    finally:
        for resource in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            shares.api.request("DELETE", f"{ADMISSION}/{resource}/keep")


def unlabelled(shares: Shares) -> dict[str, str]:
    """Create a reservation pod that no pod and no request needs, without the labels of one, which are returned."""
    body = reservation(shares.live.namespace, "ended", name=NAME)
    labels: dict[str, str] = body["metadata"].pop("labels")
    shares.api.post(RESERVATIONS, body)
    return labels


def refusal(shares: Shares) -> str:
    """Return why the pod cannot be deleted; empty if it can."""
    try:
        shares.api.request("DELETE", f"{RESERVATIONS}/{NAME}?dryRun=All")
    except LocalApiError as error:
        return str(error)
    return ""


def test_an_unused_device_that_cannot_be_released_delays_only_pods_that_need_it(shares: Shares) -> None:
    live = shares.live
    shares.share("first", "used")
    live.phase("first", "Succeeded")
    labels = unlabelled(shares)
    with denial(shares):
        # From here on it is an unused device of the node.
        shares.api.patch(f"{RESERVATIONS}/{NAME}", {"metadata": {"labels": labels}})
        # Both devices: the reconciler has them in its cache, and kwok does not write to them any more. A delete of a
        # pod that has just changed is repeated and not reported.
        Series(live).until(2, "gpu_sharing_reservations", state="held")
        live.create_pod("whole")
        live.request_bind("whole", backoffLimit=0, **WHOLE)
        live.event("whole", "BindingWaiting")
        for name, node, spec in (("plain", "gpu-node-0", {}), ("elsewhere", "gpu-node-1", WHOLE)):
            live.create_pod(name)
            live.request_bind(name, node, **spec)
            live.phase(name, "Succeeded")
        shares.share("second", "used")
        live.phase("second", "Succeeded")
        assert live.request("whole")["status"]["phase"] == "Pending"
        assert "nodeName" not in live.pod("whole")["spec"]
    status = live.phase("whole", "Succeeded", "Failed")["status"]
    assert status["phase"] == "Succeeded", status
    shares.await_release("ended")
