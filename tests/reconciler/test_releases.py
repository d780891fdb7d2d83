"""What a plugin holds for a bound pod is returned when the pod has ended or is gone, whatever is down then."""

import logging
from functools import partial
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import PluginConfig
from bowline.framework.interface.status import Status
from bowline.kube.resources import NAMESPACES, PODS
from bowline.runtime.logging import fields_of
from bowline.testing.builders import pod
from bowline_reconciler.term.uninstall import Uninstall
from tests.reconciler.stage import Stage
from tests.waiting import until_awaited

MINE = {"seat": "yes"}


class Seats(BindingPlugin):
    """Holds a seat for each pod with the annotation; ``down``: it cannot be returned."""

    name = "seats"

    def __init__(self, *, down: bool = False) -> None:
        super().__init__(PluginConfig(), Settings())
        self.down = down
        self.calls: list[tuple[str, str, bool]] = []

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return "seat" in (pod["metadata"].get("annotations") or {})

    async def release(self, ctx: BindContext) -> Status:
        self.calls.append(("release", ctx.request.pod_uid, ctx.pod is not None))
        return Status.outage("the server does not answer") if self.down else Status.ok()

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        self.calls.append(("rollback", ctx.request.pod_uid, ctx.pod is not None))
        return Status.ok()


async def bound(stage: Stage, name: str = "pod") -> str:
    """Bind a pod with a seat; returns its UID."""
    uid = await stage.create_pod(name, annotations=MINE)
    await stage.request_bind(name)
    await stage.phase(name, "Succeeded")
    return uid


async def finalizers(stage: Stage, name: str = "pod") -> Any:
    return (await stage.request(name))["metadata"].get("finalizers")


async def end_pod(stage: Stage) -> None:
    await stage.client.patch(PODS, stage.namespace, "pod", {"status": {"phase": "Succeeded"}}, subresource="status")


async def remove_pod(stage: Stage) -> None:
    """Delete the pod, and its request as the garbage collector does."""
    await stage.delete_pod()
    await stage.withdraw()


async def test_a_bound_pod_keeps_its_seat_and_the_record_of_it(stage: Stage) -> None:
    seats = Seats()
    async with stage.working(seats):
        await bound(stage)
        assert await finalizers(stage) == [names.FINALIZER]
        # Its containers may run for ten minutes more; its scheduler deletes the request meanwhile.
        await stage.client.delete(PODS, stage.namespace, "pod", grace_period_s=600)
        await stage.withdraw()
        await stage.create_pod("other")
        await stage.request_bind("other")
        await stage.phase("other", "Succeeded")
        assert "finalizers" not in (await stage.request("other"))["metadata"]
        assert await finalizers(stage) == [names.FINALIZER]
        assert seats.calls == []
        await end_pod(stage)
        await stage.request_deleted()
    assert [call for call, _, _ in seats.calls] == ["release"]


async def test_a_seat_that_cannot_be_returned_is_reported_and_returned_by_the_next_process(stage: Stage) -> None:
    seats = Seats(down=True)
    async with stage.working(seats):
        await bound(stage)
        await remove_pod(stage)
        await until_awaited(partial(stage.events, "pod"), lambda reasons: "ReleaseFailed" in reasons)
        assert await finalizers(stage) == [names.FINALIZER]
        status = await until_awaited(stage.status, lambda status: "reason" in status)
    assert (status["phase"], status["reason"]) == ("Succeeded", "ReleaseFailed: seats: the server does not answer")
    seats = Seats()
    async with stage.working(seats):
        await stage.request_deleted()
    assert len(seats.calls) == 1


async def test_an_uninstall_returns_the_seats_of_ended_pods_and_reports_those_of_running_ones(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.working(Seats()) as working:
        uid = await bound(stage)
        await bound(stage, "runs")
        await working.crash()
    await end_pod(stage)
    seats = Seats()
    async with stage.working(seats, uninstalling=True) as working:
        gone, reports = ObjectKey(stage.namespace, "none"), list[tuple[Any, Any]]()

        def report(record: logging.LogRecord) -> bool:
            fields = fields_of(record)
            reports.append((fields.get("bindRequest"), fields.get("plugins")))
            return True

        caplog.handler.addFilter(report)
        with caplog.at_level(logging.INFO, "bowline_reconciler.term.releases"):
            await Uninstall(stage.client, gone, stage.namespace).run()
        assert await finalizers(stage) is None
        assert await finalizers(stage, "runs") is None
        await until_awaited(partial(stage.events, "runs"), lambda reasons: "NotReleased" in reasons)
    assert seats.calls == [("release", uid, True)]
    assert (f"{stage.namespace}/runs", "seats") in reports


async def test_an_uninstall_leaves_a_reservation_that_a_pod_of_another_binder_uses(stage: Stage) -> None:
    """In a namespace that is excluded Bowline labels no pod, so only the group itself says that it is shared."""
    group, users = {names.LABEL_GPU_GROUP: stage.namespace}, f"{stage.namespace}-users"
    await stage.client.create(NAMESPACES, "", {"metadata": {"name": users}})
    for namespace in (stage.namespace, users):
        body = pod("share", namespace, nodeName="gpu-node-0")
        await stage.client.create(PODS, namespace, {**body, "metadata": {**body["metadata"], "labels": group}})
    try:
        await Uninstall(stage.client, ObjectKey(stage.namespace, "none"), stage.namespace).run()
    finally:
        await stage.client.delete(PODS, users, "share")
