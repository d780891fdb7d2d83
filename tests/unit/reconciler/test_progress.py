"""Which cause an unfinished request is reported with, and which requests are unfinished."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.framework.binding.calls import PluginCall, PluginCaller
from bowline.kube.accounting import OpenCall, open_calls
from bowline.kube.availability import Availability
from bowline.kube.calls import Call
from bowline.kube.errors import NoResponse
from bowline.kube.resources import NODES, PODS
from bowline.runtime.workers import DONE, ReconcileError, Result, run_workers
from bowline.testing.builders import bind_request, stored
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.drive.driver import Driver
from bowline_reconciler.drive.progress import ProgressReports, unfinished_by
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.state import Progress
from tests.unit.reconciler.cycle import Cycle
from tests.waiting import until

KEY = ObjectKey("default", "train")
ANSWER = Unfinished("Retrying", "429 TooManyRequests: busy")


def call(since: float, plugin: str = "devices") -> PluginCall:
    return PluginCall(plugin, "pre_bind", KEY, ObjectUID("uid"), since)


@pytest.mark.parametrize(
    ("calls", "api_calls", "answer", "cause"),
    [
        pytest.param([], [], ANSWER, "429 TooManyRequests: busy", id="an answer"),
        pytest.param([call(99)], [], ANSWER, "429 TooManyRequests: busy", id="an answer, beside a short call"),
        pytest.param([call(95)], [], ANSWER, "plugin devices, pre_bind: the call has not ended yet",
            id="a hang after an answer"),
        pytest.param([call(90), call(91, "volumes")], [OpenCall(Call("PATCH", "patch", PODS, KEY), 92)], None,
            "plugin devices, pre_bind, plugin volumes, pre_bind: no reply of the API server yet to "
            "PATCH pods default/train", id="plugins in parallel"),
        pytest.param([], [OpenCall(Call("GET", "get", NODES, ObjectKey("", "gpu-node-0")), 94)], ANSWER,
            "no reply of the API server yet to GET nodes gpu-node-0", id="a call of the reconciler itself"),
        pytest.param([call(99)], [], None, "plugin devices, pre_bind: the call has not ended yet",
            id="slow, no hang"),
        pytest.param([], [], None, "the reconcile has not ended yet", id="between calls"),
    ],
)  # fmt: skip
def test_the_cause_is_what_hangs_or_the_last_answer(
    calls: list[PluginCall], api_calls: list[OpenCall], answer: Unfinished | None, cause: str
) -> None:
    assert unfinished_by(calls, api_calls, answer, 100.0).why == cause


@pytest.mark.parametrize(
    ("end", "is_unfinished", "answer"),
    [
        pytest.param(DONE, False, "", id="a result"),
        pytest.param(Result(timedelta(seconds=30)), False, "", id="a wait"),
        pytest.param(Result(timedelta(seconds=30), pending="writes"), True, "writes", id="what nothing else reports"),
        pytest.param(ReconcileError("429"), True, "429", id="a failure"),
        pytest.param(KeyError("x"), True, "a defect of Bowline, KeyError: 'x'", id="a defect"),
    ],
)
async def test_a_request_is_unfinished_until_a_reconcile_has_a_result(
    end: Result | Exception, *, is_unfinished: bool, answer: str
) -> None:
    cycle = Cycle()
    ends = [end, DONE]

    class Ending:
        async def drive(self, *_: object) -> Result:
            progress = cycle.state.stage
            assert isinstance(progress, Progress)
            open_calls().append(OpenCall(Call("GET", "get", PODS, KEY), 0.0))
            assert [noted.call.text for noted in progress.calls] == ["GET pods default/train"]
            progress.calls.clear()
            if isinstance(end := ends.pop(0), Exception):
                raise end
            return end

    reconciler = replace(cycle.reconciler, driver=cast(Driver, Ending()))
    with suppress(ReconcileError, KeyError):
        await reconciler.reconcile(KEY)
    stage = cycle.state.stage
    assert isinstance(stage, Progress) is is_unfinished
    assert not isinstance(stage, Progress) or (stage.answer and stage.answer.why.startswith(answer))
    await reconciler.reconcile(KEY)
    assert cycle.state.stage is None


def reports_of(cycle: Cycle, reporter: Reporter) -> ProgressReports:
    caller, availability = PluginCaller(cycle.driver.observation), Availability(cycle.clock)
    return ProgressReports(
        cycle.states, cycle.requests, reporter, cycle.driver.requeue, availability, caller, cycle.clock
    )


async def test_a_report_is_not_repeated_while_it_is_written() -> None:
    """Whoever repeats one that hangs writes without a pause, and for as long as it hangs occupies a worker."""
    cycle, released, written = Cycle(), asyncio.Event(), list[str]()

    class Hanging(Reporter):
        async def unfinished(self, _: object, __: object, cause: Unfinished, *, is_isolated: bool) -> None:
            written.append(cause.why)
            await released.wait()
            raise NoResponse("no reply")

    reports = reports_of(cycle, Hanging(cycle.driver.writer, cycle.driver.observation.metrics, cycle.clock))
    cycle.state.stage = Progress(0.0, answer=ANSWER)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_workers(reports.queue, reports._report, reports._on_error))
        await until(lambda: reports.queue.is_open)
        reports.scan()
        await until(lambda: written)
        for _ in range(3):
            cycle.clock.step(timedelta(seconds=6))
            reports.scan()
        released.set()
        await until(lambda: not reports.queue.depth and not reports.queue.processing)
        running.cancel()
    assert written == [ANSWER.why]


async def test_the_next_request_of_a_name_says_that_a_write_for_the_former_one_may_take_effect() -> None:
    cycle = Cycle()
    cycle.state.begun_request = cycle.request
    cycle.state.attempt.writes.lose(cycle.clock.monotonic(), is_binding=True)
    cycle.show(decode_bind_request(stored(bind_request("train", uid="pod-uid"), uid="next", version="9")))
    assert (await cycle.reconciler.reconcile(KEY)).pending
    cycle.clock.step(timedelta(seconds=6))
    reports = reports_of(cycle, cycle.driver.reporter)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_workers(reports.queue, reports._report, reports._on_error))
        await until(lambda: reports.queue.is_open)
        reports.scan()
        await until(lambda: not reports.queue.depth and not reports.queue.processing)
        running.cancel()
    assert cycle.request.uid == "next"
    assert "may still take effect" in cycle.request.status["reason"]
