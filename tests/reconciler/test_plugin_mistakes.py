"""A plugin with a common mistake, in a reconciler on a real API server: no pod is bound unprepared."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import Budgets
from bowline.framework.config import Binding
from bowline.framework.plugin_status import Status
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage
from tests.waiting import until_awaited

NO_RETRY = Binding(backoff_limit=0, in_flight_timeout=NO_FLIGHT)


def typo(*_: Any) -> Any:
    raise KeyError("typo")


@pytest.mark.parametrize(
    ("point", "act"),
    [
        pytest.param("applies", lambda *_: None, id="applies returns None"),
        pytest.param("applies", lambda *_: Status.ok(), id="applies returns a Status"),
        pytest.param("applies", typo, id="applies raises"),
        pytest.param("binding_annotations", lambda *_: None, id="binding_annotations returns None"),
        pytest.param("binding_annotations", typo, id="binding_annotations raises"),
    ],
)
async def test_a_mistake_lets_the_request_wait_until_the_plugin_is_repaired(
    stage: Stage, point: str, act: Callable[..., Any]
) -> None:
    """No attempt is counted, and no other node is suggested; the repaired plugin is a new process."""
    kind = type("Author", (Scripted,), {point: act, "name": "author"})
    await stage.create_pod()
    await stage.request_bind()
    async with stage.working(kind(effects=True), binding=NO_RETRY) as working:
        status = await until_awaited(stage.status, lambda status: "wait" in status)
        assert (status["phase"], status.get("failedAttempts", 0), status.get("suggestion")) == ("Pending", 0, None)
        assert status["wait"]["cause"] == "plugin author"
        errors = working.parts.observation.metrics.plugin_errors.labels(plugin="author", point=point)
        assert errors._value.get() >= 1
        assert "nodeName" not in (await stage.pod())["spec"]
    async with stage.working(Scripted(effects=True), binding=NO_RETRY):
        await stage.phase("pod", "Succeeded")
    assert (await stage.pod())["spec"]["nodeName"]


@pytest.mark.parametrize("point", ["pre_bind", "bind"])
async def test_on_failure_cannot_turn_a_failure_into_a_success(stage: Stage, point: str) -> None:
    class Author(Scripted):
        name = "author"

        def on_failure(self, c: Any, status: Status) -> Status | None:
            return Status.ok()

    async def fails(_: Any) -> Status:
        return Status.fatal("the device is broken")

    author = Author(pre_bind=fails) if point == "pre_bind" else Author(bind=fails)
    async with stage.working(author):
        await stage.create_pod()
        await stage.request_bind()
        status = await stage.phase("pod", "Failed", "Succeeded")
    assert status["phase"] == "Failed"
    assert status["failure"]["reason"] == "Rejected"
    assert "nodeName" not in (await stage.pod())["spec"]


async def test_a_plugin_that_raises_in_serves_delays_only_its_own_requests(stage: Stage) -> None:
    class Author(Scripted):
        name = "author"

        def supported_allocations(self, request: BindRequest) -> Any:
            raise KeyError("typo")

    async with stage.working(Author()) as working:
        await stage.create_pod("plain")
        await stage.request_bind("plain")
        await stage.create_pod("share")
        gpu = {"count": 1, "portion": "0.50"}
        await stage.request_bind(
            "share", receivedResourceType="Fraction", receivedGPU=gpu, selectedGPUGroups=["group-1"]
        )
        await stage.phase("plain", "Succeeded")
        status = await until_awaited(partial(stage.status, "share"), lambda status: "wait" in status)
        assert status["wait"]["cause"] == "plugins"
        errors = working.parts.observation.metrics.plugin_errors
        assert errors.labels(plugin="author", point="supported_allocations")._value.get() >= 1
    assert (status["phase"], status.get("failedAttempts", 0)) == ("Pending", 0)


async def test_a_plugin_that_raises_in_leaves_effects_is_rolled_back(stage: Stage) -> None:
    class Author(Scripted):
        def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
            raise KeyError("typo")

    async def fails(_: Any) -> Status:
        return Status.fatal("no")

    author = Author(pre_bind=fails)
    async with stage.working(author):
        await stage.create_pod()
        await stage.request_bind()
        await stage.phase("pod", "Failed")
    assert author.points("pod") == ["pre_bind", "rollback"]


async def test_a_call_that_ignores_its_cancellation_counts_and_its_worker_continues(stage: Stage) -> None:
    class Author(Scripted):
        name = "author"
        budgets = Budgets(call_s=0.1)

    released = asyncio.Event()

    async def ignores(ctx: BindContext) -> Status:
        while ctx.request.key.name == "stuck" and not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return Status.ok()

    one_worker = Binding(workers=1, backoff_limit=0, in_flight_timeout=NO_FLIGHT)
    try:
        async with stage.working(Author(pre_bind=ignores), binding=one_worker) as working:
            await stage.create_pod("stuck")
            await stage.request_bind("stuck")
            status = await stage.phase("stuck", "Failed", "Succeeded")
            assert status["failure"]["reason"] == "BackoffLimitExceeded"
            assert "nodeName" not in (await stage.pod("stuck"))["spec"]
            await stage.create_pod()
            await stage.request_bind()
            await stage.phase("pod", "Succeeded")
            errors = working.parts.observation.metrics.plugin_errors.labels(plugin="author", point="pre_bind")
            assert errors._value.get() == 1
    finally:
        released.set()
