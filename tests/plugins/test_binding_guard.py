"""Bindings by clients other than the reconciler, as the API server answers them."""

from typing import Any

import pytest

from tests.live import Live
from tests.plugins.conftest import ALLOWED_USER

# A claim that is never created: the request waits as long as a test needs.
WAITING: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]}
NODE = "gpu-node-1"


def bind(live: Live, name: str, user: str, path: str = "pods/{name}/binding") -> Any:
    """Post a Binding as a user with all rights."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": live.namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }
    raw = f"--raw=/api/v1/namespaces/{live.namespace}/{path.format(name=name)}"
    who = (f"--as={user}", "--as-group=system:masters")
    return live.kubectl("create", raw, *who, "-f", "-", objects=binding, check=False)


def waiting(live: Live) -> None:
    """A pod whose bind is being prepared, known to the webhook."""
    live.create_pod(**WAITING)
    live.request_bind(node=NODE)
    dry = ("pods/{name}/binding?dryRun=All", "bindings?dryRun=All")
    live.until("the webhook knows the request", lambda: bind(live, "pod", "eve", dry[0]).returncode != 0 or None)


@pytest.mark.parametrize("path", ["pods/{name}/binding", "bindings"])
def test_no_other_client_binds_a_pod_that_has_a_request(guarded: Live, path: str) -> None:
    waiting(guarded)
    refused = bind(guarded, "pod", "eve", path)
    assert refused.returncode != 0
    assert "is bound by Bowline's reconciler, not by user" in refused.stderr
    assert "nodeName" not in guarded.pod()["spec"]


def test_a_listed_client_may_bind(guarded: Live) -> None:
    waiting(guarded)
    assert bind(guarded, "pod", ALLOWED_USER).returncode == 0
    assert guarded.pod()["spec"]["nodeName"] == NODE
    guarded.phase("pod", "Succeeded")


def reviewed(live: Live) -> float:
    """The number of Bindings that the webhook has reviewed."""
    assert live.pair.webhook is not None
    _, text = live.pair.webhook.get("/metrics")
    name = 'bowline_admission_requests_total{allowed="true",hook="/validate/bindings"} '
    return next(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


def test_the_reconcilers_bindings_and_pods_without_a_request_are_not_guarded(guarded: Live) -> None:
    before = reviewed(guarded)
    guarded.create_pod("ours")
    guarded.request_bind("ours")
    guarded.phase("ours", "Succeeded")
    assert reviewed(guarded) == before
    guarded.create_pod("theirs")
    assert bind(guarded, "theirs", "eve").returncode == 0
    assert reviewed(guarded) == before + 1


def test_a_withdrawn_request_guards_no_longer(guarded: Live) -> None:
    waiting(guarded)
    guarded.kubectl("delete", "bindrequest", "pod")
    guarded.until("the webhook has cached it", lambda: bind(guarded, "pod", "eve").returncode == 0 or None)
