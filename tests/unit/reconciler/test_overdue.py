"""The overdue monitor reports the plugin and the step that blocks an attempt, once and then at growing intervals."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from bowline.framework.binding.plugin import Budgets
from bowline.framework.binding.runner import Runner
from bowline_reconciler.observe.reconciles import BETWEEN, THRESHOLDS_S, is_overdue
from tests.unit.reconciler.watching import Stuck, Watched, context


@pytest.mark.parametrize(
    ("point", "scans"),
    [
        pytest.param("pre_bind", (20, 40, 80), id="at the threshold, and when the time has doubled"),
        pytest.param("post_bind", (1, 2, 4, 8, 16, 32, 64), id="a shorter threshold for a shorter budget"),
        pytest.param(BETWEEN, (), id="between plugins, within the client's own timeouts"),
    ],
)
def test_a_call_is_logged_at_a_threshold_and_when_the_time_has_doubled(point: str, scans: tuple[int, ...]) -> None:
    assert tuple(number for number in range(100) if is_overdue(point, number)) == scans


def test_every_threshold_is_scanned_before_the_budget_ends_the_call() -> None:
    budgets = Budgets()
    ends = {"pre_bind": budgets.call_s, "bind": budgets.call_s, "post_bind": budgets.post_bind_s}
    ends["rollback"] = ends["release"] = budgets.rollback_s
    assert all(THRESHOLDS_S[point] <= end / 2 for point, end in ends.items())
    assert {*ends, BETWEEN} == set(THRESHOLDS_S)


def reported(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.__dict__ for record in caplog.records if hasattr(record, "seconds")]


async def test_plugin_and_step_of_a_stuck_attempt_are_named(caplog: pytest.LogCaptureFixture) -> None:
    harness, stuck, c = Watched(), Stuck(), context()
    runner, monitor = Runner((stuck,), harness.caller), harness.overdue
    with harness.observation.track(c.request.key):
        attempt = asyncio.create_task(runner.run_pre_bind(c))
        await stuck.entered.wait()
        monitor.scan()
        assert reported(caplog) == []
        harness.clock.step(timedelta(minutes=5))  # the process was stopped: no time of the plugin
        for scans, lines in ((19, 0), (1, 1), (19, 1), (1, 2)):
            for _ in range(scans):
                monitor.scan()
            assert len(reported(caplog)) == lines
        stuck.go.set()
        await attempt
    line = reported(caplog)[0]
    assert (line["plugin"], line["point"], line["seconds"]) == ("devices", "pre_bind", 20.0)
    assert line["bindRequest"] == "default/train"
