"""Faults of other binders that have no test module of their own."""

from collections.abc import Mapping
from datetime import timedelta

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.kube.config import load_access
from bowline.kube.resources import PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until, until_awaited


async def test_a_missing_right_is_terminal_when_it_lasts(bare_cluster: Cluster, stage: Stage) -> None:
    account = f"system:serviceaccount:{stage.namespace}:half"
    role = f"half-{stage.namespace}"
    kubectl, at = bare_cluster.kubectl, f"--namespace={stage.namespace}"
    kubectl("create", "serviceaccount", "half", at)
    resources = "pods,pods/status,nodes,leases.coordination.k8s.io,events.events.k8s.io,configmaps"
    ours = f"bindrequests.{names.GROUP},bindrequests.{names.GROUP}/status"
    kubectl("create", "clusterrole", role, "--verb=*", f"--resource={resources},{ours}")
    kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", f"--serviceaccount={stage.namespace}:half")
    try:
        arguments = ("auth", "can-i", "patch", f"bindrequests.{names.GROUP}", f"--as={account}")

        async def may() -> str:
            return kubectl(*arguments, check=False).stdout.strip()

        await until_awaited(may, lambda answer: answer == "yes")
        access = await load_access(api_server(bare_cluster.service_account_kubeconfig(stage.namespace, "half")))
        plugin = Scripted()
        async with stage.working(plugin, access=access) as working:
            await stage.create_pod()
            await stage.request_bind()
            # An authorizer that has just started denies valid requests: for a minute no failure is terminal.
            await until(lambda: working.sizes["failing"] == 1)
            assert "phase" not in await stage.status()
            stage.clock.passed += timedelta(seconds=6)
            noticed = await until_awaited(stage.status, lambda status: "phase" in status)
            assert noticed["reason"].startswith("Retrying: ")
            assert "failedAttempts" not in noticed
            assert await stage.event("pod", "BindingRetry")
            stage.clock.passed += timedelta(minutes=1)
            status = await stage.phase("pod", "Failed")
    finally:
        kubectl("delete", f"clusterrole/{role}", f"clusterrolebinding/{role}")
    assert status["failure"]["reason"] == "RBACMissing"
    assert set(plugin.points("pod")) == {"pre_bind"}


async def test_no_binding_is_sent_with_invalid_annotations(stage: Stage) -> None:
    class Annotates(Scripted):
        def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
            return {"no blanks/allowed here": "x"}

    plugin = Annotates(effects=True)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        status = await until_awaited(stage.status, lambda status: "no blanks" in status.get("reason", ""))
        assert status["phase"] == "Pending", "it waits for the plugin's repair"
        await stage.withdraw()
        await stage.request_deleted()
    assert plugin.points("pod")[-1] == "rollback"
    updated = await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"labels": {"still": "alive"}}})
    assert "nodeName" not in updated["spec"]
