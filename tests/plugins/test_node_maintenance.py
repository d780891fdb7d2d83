"""The commands of docs/maintain-a-gpu-node.md on a node with shares: a plain drain ends, and nothing is left."""

from bowline.api import names
from bowline.localcluster.assets.recipes import Tool
from bowline.testing.builders import pod
from tests.documents import commands, run
from tests.plugins.sharing import HALF, RESERVATIONS, Shares

PAGE = "docs/maintain-a-gpu-node.md"
NODE = "gpu-node-2"


def share(shares: Shares, name: str, group: str) -> None:
    """Bind a share whose pod has a controller, as those of a Deployment."""
    path = f"/api/v1/namespaces/{shares.live.namespace}"
    owner = shares.api.post(f"{path}/configmaps", {"metadata": {"name": f"owner-of-{name}"}})["metadata"]
    body = pod(name, shares.live.namespace)
    body["metadata"]["annotations"] = dict(HALF)
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["name"], "uid": owner["uid"], "controller": True}
    ]
    shares.api.post(f"{path}/pods", body)
    shares.ask(name, [group], node=NODE)
    shares.live.phase(name, "Succeeded")


def test_a_node_with_shares_is_drained_and_used_again(shares: Shares) -> None:
    live, kubectl = shares.live, shares.live.cluster.assets.path(Tool.KUBECTL).parent
    share(shares, "moved", "drained")
    share(shares, "other", "kept")
    cordon, drain, *others = (command.text.replace("NODE", NODE) for command in commands(PAGE))
    run(cordon, live.cluster.kubeconfig, kubectl)
    # A driver upgrade may delete the pods with a GPU first: the device is not searched for.
    (reservation,) = shares.reservations("drained")
    shares.api.request("DELETE", f"{RESERVATIONS}/{reservation['metadata']['name']}", {"gracePeriodSeconds": 0})
    live.until(
        "the search is abandoned", lambda: any(f"{NODE} is cordoned" in note for _, note in live.events("moved"))
    )
    assert shares.reservations("drained") == []
    output = run(drain, live.cluster.kubeconfig, kubectl)
    assert f"evicting pod {names.RESERVATION_APP}/{names.RESERVATION_PREFIX}" in output
    for name in ("moved", "other"):
        live.until("the share is gone", lambda: live.not_found(f"{shares.pods}/{name}"))  # noqa: B023 - called at once
    shares.await_release()
    for command in others:
        run(command, live.cluster.kubeconfig, kubectl)
    share(shares, "later", "drained")
