"""Faults of other binders that have no test module of their own; each with its number."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.config import BackoffSettings, Binding
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.config import load_access
from bowline.kube.resources import BINDREQUESTS, PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline_reconciler.informers import Informers
from tests.reconciler.stage import NO_FLIGHT, Hold, Scripted, Stage
from tests.waiting import until, until_awaited


async def fails_first(ctx: BindContext) -> Status:
    return Status.retry("no luck") if ctx.attempt == 1 else Status.ok()


async def test_no_event_shortens_a_backoff(stage: Stage) -> None:
    plugin = Scripted(pre_bind=fails_first)
    slow = BackoffSettings(base=timedelta(hours=1), max=timedelta(hours=1))
    binding = Binding(backoff=slow, in_flight_timeout=timedelta(milliseconds=1))
    async with stage.working(plugin, binding=binding) as working:
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: (seen := working.seen(stage.namespace)) is not None and seen.failed_attempts == 1)
        # The next attempt is due in minutes, whatever events arrive and whatever the wall clock shows.
        stage.clock.shift += timedelta(hours=3)
        key = ObjectKey(stage.namespace, "pod")
        for label in ("1", "2", "3"):
            body = {"metadata": {"labels": {"touched": label}}}
            await stage.client.patch(BINDREQUESTS, stage.namespace, "pod", body)
            await stage.client.patch(PODS, stage.namespace, "pod", body)
            await until(partial(_is_labelled, working.parts.informers, key, label))
        assert plugin.points("pod") == ["pre_bind"]
        assert (await stage.status())["failedAttempts"] == 1
        stage.clock.passed += timedelta(hours=2)
        await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"labels": {"touched": "4"}}})
        await stage.phase("pod", "Succeeded")
    assert plugin.points("pod") == ["pre_bind", "pre_bind", "post_bind"]


def _is_labelled(stores: Informers, key: ObjectKey, label: str) -> bool:
    pod = stores.pod(key)
    return pod is not None and (pod["metadata"].get("labels") or {}).get("touched") == label


@pytest.mark.parametrize("reason", [Reason.DEVICE_CONFLICT, Reason.VOLUME_CONFLICT])
async def test_a_conflict_is_terminal_and_reported_to_the_scheduler(stage: Stage, reason: Reason) -> None:
    async def conflicts(ctx: BindContext) -> Status:
        return Status.fatal("it is not free", reason, Suggestion.RESCHEDULE_ELSEWHERE)

    plugin = Scripted(pre_bind=conflicts)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind(backoffLimit=5)
        status = await stage.phase("pod", "Failed")
    assert status["failure"]["reason"] == reason.value
    assert status["suggestion"] == "RescheduleElsewhere"
    assert status["failedAttempts"] == 5, "schedulers read fewer as unfinished"
    assert plugin.points("pod") == ["pre_bind"]


async def test_no_binding_is_sent_for_a_missing_node(stage: Stage) -> None:
    plugin = Scripted()
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind(node="nowhere")
        assert (await stage.phase("pod", "Failed"))["reason"].startswith("NodeGone")
    assert plugin.calls == []


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


async def test_watches_continue_while_every_worker_is_busy(stage: Stage) -> None:
    hold = Hold()

    async def first_is_slow(ctx: BindContext) -> Status:
        return await hold(ctx) if ctx.request.key.name == "slow" else Status.ok()

    one_worker = Binding(workers=1, in_flight_timeout=NO_FLIGHT)
    async with stage.working(Scripted(pre_bind=first_is_slow), binding=one_worker) as working:
        await stage.create_pod("slow")
        await stage.request_bind("slow")
        await hold.reached.wait()
        for number in range(5):
            await stage.create_pod(f"more-{number}")
            await stage.request_bind(f"more-{number}")
        await until(lambda: all(working.seen(stage.namespace, f"more-{number}") for number in range(5)))
        assert "phase" not in await stage.status("more-4")
        hold.go.set()
        for number in range(5):
            await stage.phase(f"more-{number}", "Succeeded")


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"no blanks/allowed here": "x"}, id="an invalid key"),
        pytest.param({"example.com/big": "x" * 262_144}, id="too large"),
    ],
)
async def test_no_binding_is_sent_with_invalid_annotations(stage: Stage, annotations: dict[str, str]) -> None:
    class Annotates(Scripted):
        def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
            return annotations

    plugin = Annotates(effects=True)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        status = await stage.phase("pod", "Failed")
    assert status["reason"].startswith("Rejected: ")
    assert plugin.points("pod") == ["pre_bind", "rollback"]
    updated = await stage.client.patch(PODS, stage.namespace, "pod", {"metadata": {"labels": {"still": "alive"}}})
    assert "nodeName" not in updated["spec"]


async def test_pre_bind_of_neighbours_runs_at_the_same_time(stage: Stage) -> None:
    """Two plugins, each of which continues only after the other has started."""
    both = asyncio.Barrier(2)

    async def meets(ctx: BindContext) -> Status:
        await both.wait()
        return Status.ok()

    class Beside(Scripted):
        parallel = True

    class AlsoBeside(Beside):
        name = "also"

    async with stage.working(Beside(pre_bind=meets), AlsoBeside(pre_bind=meets)):
        await stage.create_pod()
        await stage.request_bind()
        await stage.phase("pod", "Succeeded")
