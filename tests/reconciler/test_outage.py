"""Failures of the API server: however long they last, they use no attempt and end no request."""

from datetime import timedelta

from bowline.framework.binding.context import BindContext
from bowline.framework.binding.handle import EventSource
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from bowline.kube.errors import ConnectionFailed
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, NODES, PODS
from bowline.localcluster.cluster import Cluster
from bowline.testing.builders import configmap
from tests.reconciler.stage import NO_FLIGHT, Hold, Scripted, Stage
from tests.reconciler.test_waits import needs
from tests.waiting import until


async def test_twenty_minutes_without_the_api_server_cost_no_attempt_and_end_no_request(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.wire() as (wire, access), stage.working(plugin, access=access) as working:
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        await wire.cut()
        hold.go.set()
        # No request can be sent; once the outage is known, requests are held back.
        await until(lambda: working.sizes["failing"] == 1 and not working.parts.client.availability.available)
        await until(lambda: working.parts.controller.queue.processing == 0)
        stage.clock.passed += timedelta(minutes=20)
        await wire.restore()
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert "failedAttempts" not in status
    assert "rollback" not in plugin.points("pod")
    assert await stage.events() in ([], ["Bound"])


async def test_a_wait_that_expired_during_an_outage_continues_for_a_minute(stage: Stage) -> None:
    plugin = needs("data")
    async with stage.wire() as (wire, access), stage.working(plugin, access=access) as working:
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: working.sizes["waitIndex"] == 1)
        await wire.cut()
        await until(lambda: all(r.connected_since is None for r in working.parts.informers.reflectors.values()))
        stage.clock.passed += timedelta(minutes=20)
        await wire.restore()
        await until(lambda: all(r.connected_since for r in working.parts.informers.reflectors.values()))
        calls = len(plugin.calls)
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        await until(lambda: len(plugin.calls) > calls and working.sizes["waitIndex"] == 1)
        await stage.client.patch(CONFIGMAPS, stage.namespace, "data", {"data": {"ready": "yes"}})
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"


async def test_a_connection_closed_when_idle_is_no_outage_and_extends_no_deadline(stage: Stage) -> None:
    """A load balancer closes an idle watch, repeatedly."""
    plugin = needs("data")
    binding = Binding(wait_timeout=timedelta(seconds=100), in_flight_timeout=NO_FLIGHT)
    stage.clock.stop()  # a connection that is missing for ten seconds is an outage
    async with stage.wire() as (wire, access), stage.working(plugin, access=access, binding=binding) as working:
        reflectors = working.parts.informers.reflectors.values()
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: working.sizes["waitIndex"] == 1)
        stage.clock.passed += timedelta(seconds=80)
        began = stage.clock.now()
        for resource, name in ((BINDREQUESTS, "pod"), (PODS, "pod"), (NODES, "gpu-node-0")):
            touched = {"metadata": {"labels": {"touched": stage.namespace}}}
            await stage.client.patch(resource, stage.namespace if resource.namespaced else "", name, touched)
        # Each watch must have an event: a bookmark comes only within a minute, and the wait expires in 20 seconds.
        await stage.create_pod("starting", nodeName="gpu-node-0")
        await until(lambda: all(r.last_contact and r.last_contact >= began for r in reflectors))
        await until(lambda: working.sizes["waitIndex"] == 1)
        await wire.cut()
        await until(lambda: all(r.connected_since is None for r in reflectors))
        await wire.restore()
        await until(lambda: all(r.connected_since for r in reflectors))
        # An attempt that is under way when the time passes ends the request, and the plugin is not called again.
        await until(lambda: working.sizes["waitIndex"] == 1 and not working.parts.observation.reconciles)
        stage.clock.passed += timedelta(seconds=30)
        calls = len(plugin.calls)
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        await until(lambda: len(plugin.calls) > calls and not working.parts.observation.reconciles)
        status = await stage.status()
    assert status.get("reason", "").startswith("WaitTimeout: ")


async def test_an_expired_wait_whose_rollback_meets_an_outage_ends_although_its_object_is_ready(
    stage: Stage,
) -> None:
    """Part of what the pod needs may be rolled back already, so nothing is evaluated again."""
    plugin = needs("data")
    plugin.effects = True
    async with stage.wire() as (wire, access), stage.working(plugin, access=access) as working:
        reflectors = working.parts.informers.reflectors.values()

        async def cuts(ctx: BindContext) -> Status:
            plugin.on_rollback = None
            await wire.cut()
            raise ConnectionFailed("no connection")

        plugin.on_rollback = cuts
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: working.sizes["waitIndex"] == 1)
        stage.clock.passed += timedelta(minutes=20)
        await stage.client.create(CONFIGMAPS, stage.namespace, configmap("data", ready="no"))
        await until(lambda: plugin.points("pod")[-1] == "rollback")
        await until(lambda: all(r.connected_since is None for r in reflectors))
        await stage.client.patch(CONFIGMAPS, stage.namespace, "data", {"data": {"ready": "yes"}})
        attempts = plugin.points("pod").count("pre_bind")
        await wire.restore()
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Failed"
    assert status["reason"].startswith("WaitTimeout: ")
    assert plugin.points("pod").count("pre_bind") == attempts
    assert plugin.points("pod")[-2:] == ["rollback", "rollback"]
    assert "nodeName" not in (await stage.pod())["spec"]


async def test_an_api_server_that_restarts_is_no_failure(bare_cluster: Cluster, stage: Stage) -> None:
    hold = Hold()
    async with stage.working(Scripted(effects=True, pre_bind=hold)) as working:
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        bare_cluster.stop_apiserver()
        try:
            hold.go.set()
            await until(lambda: working.sizes["failing"] == 1)
        finally:
            bare_cluster.start_apiserver()
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert "failedAttempts" not in status


async def test_a_plugin_without_the_api_server_uses_no_attempt(stage: Stage) -> None:
    async with stage.wire() as (wire, access):
        reads = 0

        async def reads_a_map(ctx: BindContext) -> Status:
            nonlocal reads
            reads += 1
            if reads == 1:
                await wire.cut()
            config_maps = await ctx.client.list_all(CONFIGMAPS, ctx.request.key.namespace)
            return Status.ok() if config_maps == [] else Status.fatal("there are none")

        plugin = Scripted(pre_bind=reads_a_map, sources=[EventSource(CONFIGMAPS)])
        async with stage.working(plugin, access=access) as working:
            await stage.create_pod()
            await stage.request_bind()
            await until(lambda: working.sizes["failing"] == 1)
            await wire.restore()
            status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert "failedAttempts" not in status
    assert reads > 1


async def test_a_status_that_could_not_be_written_is_retried_and_counts_once(stage: Stage) -> None:
    """The failure's status write is lost; no attempt follows before it is stored."""
    async with stage.wire() as (wire, access):

        async def fails_and_cuts(ctx: BindContext) -> Status:
            if ctx.attempt == 1:
                await wire.cut()
                return Status.retry("no luck")
            return Status.ok()

        plugin = Scripted(pre_bind=fails_and_cuts)
        async with stage.working(plugin, access=access) as working:
            await stage.create_pod()
            await stage.request_bind()
            await until(lambda: working.sizes["failing"] == 1)
            assert plugin.points("pod") == ["pre_bind"]
            await wire.restore()
            status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded"
    assert status["failedAttempts"] == 1
    assert plugin.points("pod") == ["pre_bind", "pre_bind", "post_bind"]
