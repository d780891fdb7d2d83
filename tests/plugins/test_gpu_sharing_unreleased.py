"""An unused device that cannot be released: it delays the pods that need a device of its node, and no others."""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.errors import LocalApiError
from tests.live import Live
from tests.plugins.series import Series
from tests.plugins.sharing import RESERVATIONS, Shares, reservation

# As KAI-Scheduler's binder named them up to v0.15: the name shows the node.
NAME = "gpu-reservation-gpu-node-0-x7k2p"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
WHOLE: dict[str, Any] = {"receivedGPU": {"count": 1, "portion": "1.00"}}


@pytest.fixture
def shares(pair: Live) -> Shares:
    """Sharing pods in the test's namespace."""
    return Shares(pair)


# Whether the API server applies the obstacle: it watches policies and webhook configurations.
IsInForce = Callable[[], bool]


@contextmanager
def denial(shares: Shares) -> Iterator[IsInForce]:
    """A policy of the cluster denies the delete."""
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
        yield lambda: "it is kept" in refusal(shares)
    finally:
        for resource in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            shares.api.request("DELETE", f"{ADMISSION}/{resource}/keep")


@contextmanager
def called_at(shares: Shares, port: int) -> Iterator[None]:
    hook = {
        "name": "keep.tests.bowline.dev",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": [RULE],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": names.RESERVATION_APP}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
    }
    path = f"{ADMISSION}/validatingwebhookconfigurations"
    shares.api.post(path, {"metadata": {"name": "keep"}, "webhooks": [hook]})
    try:
        yield
    finally:
        shares.api.request("DELETE", f"{path}/keep")


@contextmanager
def hanging(shares: Shares) -> Iterator[IsInForce]:
    """A webhook of the reservation namespace accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as listener, called_at(shares, listener.getsockname()[1]):

        def is_called() -> bool:
            refusal(shares)
            return bool(select.select([listener], [], [], 0)[0])

        yield is_called


def unlabelled(shares: Shares) -> dict[str, str]:
    """Create a reservation pod that no pod and no request needs, without the labels of one, which are returned."""
    body = reservation(shares.live.namespace, "ended", name=NAME)
    labels: dict[str, str] = body["metadata"].pop("labels")
    shares.api.post(RESERVATIONS, body)
    return labels


def refusal(shares: Shares) -> str:
    """Return why the pod cannot be deleted; empty if it can."""
    try:
        shares.api.request("DELETE", f"{RESERVATIONS}/{NAME}?dryRun=All&timeout=1s")
    except (LocalApiError, ConnectionError) as error:
        # At the end of the time the API server replies with 504, or closes the connection if a reply has begun.
        return str(error)
    return ""


@pytest.mark.parametrize("obstacle", [denial, hanging])
def test_an_unused_device_that_cannot_be_released_delays_only_pods_that_need_it(
    shares: Shares, obstacle: Callable[[Shares], Any]
) -> None:
    live = shares.live
    shares.share("first", "used")
    live.phase("first", "Succeeded")
    labels = unlabelled(shares)
    with obstacle(shares) as is_in_force:
        live.until("the delete fails", is_in_force)
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
