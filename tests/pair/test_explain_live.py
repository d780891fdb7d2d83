"""``bowline explain`` on a real cluster, with the rights of the role ``view``: each cause, and its remedy."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.testing.builders import bind_request, pod
from bowline_cli.main import main
from tests.live import FLAKY, Live
from tests.plugins.claims import claim_decisions, publish, template
from tests.plugins.sharing import RESERVATIONS, SILENT, Shares
from tests.plugins.storage import Storage

VIEWER = "viewer"
REPORTED_CLAIM = "kubectl -n {0} describe persistentvolumeclaim data"

Explain = Callable[[str], str]


@pytest.fixture(scope="session")
def viewer(pair_cluster: tuple[Cluster, Pair]) -> Path:
    """A kubeconfig with the rights of the ClusterRole ``view`` in all namespaces."""
    cluster, _ = pair_cluster
    cluster.kubectl("create", "serviceaccount", VIEWER, "--namespace=default")
    cluster.kubectl(
        "create", "clusterrolebinding", VIEWER, "--clusterrole=view", f"--serviceaccount=default:{VIEWER}"
    )
    return cluster.service_account_kubeconfig("default", VIEWER)


@pytest.fixture
def explain(pair: Live, viewer: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Run the command as the viewer; returns its output."""

    def run(name: str) -> str:
        arguments = ["explain", name, f"--namespace={pair.namespace}", f"--kubeconfig={viewer}"]
        status = main(arguments)
        out, err = capsys.readouterr()
        assert (status, err) == (0, ""), err
        assert "not read" not in out
        return out

    return run


def until_explained(pair: Live, explain: Explain, name: str, text: str) -> str:
    """Wait until the explanation has the text; returns it."""

    def explanation() -> str | None:
        out = explain(name)
        return out if text in out else None

    return pair.until(f"explain names: {text}", explanation)


def commands(out: str) -> list[str]:
    return re.findall(r"^  next   (.+)$", out, re.MULTILINE)


@contextmanager
def without_reconciler(pair: Live) -> Iterator[None]:
    """Stop the reconciler; start it again at the end."""
    assert pair.pair.reconcilers[0].stop()
    try:
        yield
    finally:
        pair.pair.launch_reconciler().wait_ready()


def test_a_pod_without_a_decision(pair: Live, explain: Explain) -> None:
    pair.create_pod()
    out = explain("pod")
    assert "no scheduler has decided: no BindRequest names the pod, and bowline has reported nothing about it" in out
    assert "kubectl get pods -A | grep -i scheduler" in commands(out)
    pair.request_bind()
    pair.phase("pod", "Succeeded")
    assert "the pod is bound to node gpu-node-0" in explain("pod")


def test_a_pod_of_a_misspelt_scheduler(pair: Live, explain: Explain) -> None:
    pair.create_pod(schedulerName="kai-schedular")
    out = explain("pod")
    assert "schedulerName kai-schedular is not one that Bowline serves (kai-scheduler, bowline)" in out
    assert "did you mean kai-scheduler?" in out
    assert "to change the immutable name, delete and create the pod" in out
    pair.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
    pair.create_pod(schedulerName="kai-scheduler")
    pair.request_bind()
    pair.phase("pod", "Succeeded")


def test_a_gated_pod_without_and_with_a_decision(pair: Live, explain: Explain) -> None:
    pair.create_pod(schedulingGates=[{"name": "example.com/quota"}])
    assert "no scheduler decides while the pod has scheduling gates: example.com/quota" in explain("pod")
    pair.request_bind()
    out = until_explained(pair, explain, "pod", "still has scheduling gates: example.com/quota")
    assert "  until  fails with WaitTimeout at 20" in out
    pair.kubectl("patch", "pod", "pod", "--type=json", '-p=[{"op":"remove","path":"/spec/schedulingGates"}]')
    pair.phase("pod", "Succeeded")


def test_a_pod_that_waits_for_a_claim(pair: Live, explain: Explain) -> None:
    storage = Storage(pair)
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    out = until_explained(pair, explain, "pod", f"its StorageClass {storage.name('late')} does not exist")
    assert commands(out)[-1] == "kubectl get storageclasses"
    assert REPORTED_CLAIM.format(pair.namespace) in commands(out)
    assert "  until  fails with WaitTimeout at 20" in out
    try:
        storage.make_volume("a")
        storage.make_class()
        pair.phase("pod", "Succeeded")
    finally:
        storage.clean()


def test_a_share_that_waits_for_its_agent(pair: Live, explain: Explain) -> None:
    shares = Shares(pair)
    shares.make("half", tolerations=SILENT)
    shares.ask("half", ["explained"])
    out = until_explained(pair, explain, "half", "the agent has not reported the device yet")
    assert re.search(r"also   Pod kai-resource-reservation/gpu-reservation-\S+: \w+, ", out)
    assert commands(out)[0].startswith("kubectl -n kai-resource-reservation describe pod gpu-reservation-")
    # The described pod has an agent that reports nothing: it reports late.
    (reservation,) = shares.reservations("explained")
    report = {"metadata": {"annotations": {names.RESERVED_DEVICE: "GPU-late"}}}
    shares.api.patch(f"{RESERVATIONS}/{reservation['metadata']['name']}", report)
    pair.phase("half", "Succeeded")
    shares.delete("half")
    shares.await_release()


def test_a_request_without_an_allocation_for_the_claim(pair: Live, explain: Explain) -> None:
    publish(pair.cluster)
    pair.create(template("gpu"))
    pair.create_pod(resourceClaims=[{"name": "dev", "resourceClaimTemplateName": "gpu"}])
    statuses = "resourceClaimStatuses"
    pair.until("its claim exists", lambda: pair.pod()["status"].get(statuses))
    pair.request_bind()
    pair.phase("pod", "Failed")
    out = explain("pod")
    assert "the bind has failed: " in out
    assert f"kubectl -n {pair.namespace} get resourceclaims; kubectl get resourceslices" in commands(out)
    assert f"kubectl -n {pair.namespace} delete bindrequest pod" in commands(out)
    pair.kubectl("delete", "bindrequest", "pod")
    pair.request_bind(**claim_decisions("d0"))
    pair.phase("pod", "Succeeded")


def test_a_pod_between_two_attempts(pair: Live, explain: Explain) -> None:
    pair.create_pod(annotations={FLAKY: "5"})
    pair.request_bind()
    # On a busy machine the next attempt may begin before the command has read.
    out = until_explained(pair, explain, "pod", " of 7 failed: example_flaky: failing on purpose")
    assert re.search("attempt [1-5] of 7 failed", out)
    assert "  until  the next attempt, at 20" in out
    pair.phase("pod", "Succeeded")


def test_a_request_for_a_node_that_is_gone(pair: Live, explain: Explain) -> None:
    pair.create_pod()
    pair.request_bind(node="gone")
    pair.phase("pod", "Failed")
    out = explain("pod")
    assert "the bind has failed: NodeGone: node gone does not exist" in out
    assert "  until  its scheduler decides for another node" in out
    # Its scheduler's part.
    pair.kubectl("delete", "bindrequest", "pod")
    pair.request_bind()
    pair.phase("pod", "Succeeded")


def test_no_reconciler_leads(pair: Live, explain: Explain) -> None:
    with without_reconciler(pair):
        pair.create_pod()
        pair.request_bind()
        out = explain("pod")
        assert "no reconciler leads: no Lease of a reconciler is held" in out
        assert "kubectl -n bowline-system get leases,deployments,pods" in commands(out)
        assert "Deployment bowline-system/bowline-reconciler: 0 of " in out
    pair.phase("pod", "Succeeded")


def test_a_deleted_request_is_not_rolled_back(pair: Live, explain: Explain) -> None:
    with without_reconciler(pair):
        uid = pair.create_pod()
        body = bind_request("pod", "gpu-node-0", pair.namespace, uid)
        body["metadata"]["finalizers"] = [names.FINALIZER]
        pair.create(body)
        pair.kubectl("delete", "bindrequest", "pod", "--wait=false")
        out = explain("pod")
        assert f"being deleted; finalizer {names.FINALIZER} keeps it until it is rolled back; no reconciler" in out
    pair.until("the request is deleted", lambda: pair.not_found(pair.request_path()))


def test_no_shard_selects_the_request(pair: Live, explain: Explain) -> None:
    assert pair.pair.reconcilers[0].stop()
    try:
        pair.pair.upgrade({"reconciler.shardLabelSelector": "team=a"})
        pair.pair.launch_reconciler().wait_ready()
        pair.create_pod()
        pair.request_bind()
        out = until_explained(pair, explain, "pod", "no shard selects its BindRequest: its labels are none; shards: ")
        assert "(team=a)" in out
        pair.kubectl("label", "bindrequest", "pod", "team=a")
        pair.phase("pod", "Succeeded")
    finally:
        pair.pair.reconcilers[0].stop()
        pair.pair.upgrade({"reconciler.shardLabelSelector": ""})
        pair.pair.launch_reconciler().wait_ready()


def test_a_controller_whose_pods_are_not_created(pair: Live, explain: Explain) -> None:
    assert pair.pair.webhook is not None
    assert pair.pair.webhook.stop()
    try:
        spec = pod("x", pair.namespace)["spec"]
        pod_template = {"metadata": {"labels": {"app": "served"}}, "spec": spec}
        pair.create(
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": "served"},
                "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "served"}}, "template": pod_template},
            }
        )
        out = pair.until("the failure is an event", lambda: uncreated(pair, explain))
        assert (
            "the pod is not created; ReplicaSet served: Error creating: Internal error occurred: failed calling"
            in out
        )
        assert "Deployment bowline-system/bowline-webhook: " in out
        assert "kubectl -n bowline-system get pods,endpointslices" in commands(out)
    finally:
        pair.pair.launch_webhook().wait_ready()
    pair.until(
        "the pod is created", lambda: pair.kubectl("get", "pods", "-l", "app=served", "-o", "name").stdout or None
    )


def uncreated(pair: Live, explain: Explain) -> str | None:
    events = pair.cluster.api.get(f"/api/v1/namespaces/{pair.namespace}/events")["items"]
    return explain("served") if any(event["reason"] == "FailedCreate" for event in events) else None
