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
    ("point", "seconds", "reports", "due"),
    [
        pytest.param("pre_bind", 19.9, 0, False, id="within the threshold"),
        pytest.param("pre_bind", 20.0, 0, True, id="at the threshold"),
        pytest.param("pre_bind", 39.9, 1, False, id="reported, and not yet twice as long"),
        pytest.param("pre_bind", 40.0, 1, True, id="reported, and twice as long"),
        pytest.param("post_bind", 1.0, 0, True, id="a shorter threshold for a shorter budget"),
        pytest.param(BETWEEN, 100.0, 0, False, id="between plugins, within the client's own timeouts"),
        pytest.param(BETWEEN, 120.0, 0, True, id="between plugins, beyond any timeout"),
    ],
)
def test_a_call_is_logged_at_a_threshold_and_when_the_time_has_doubled(
    point: str, seconds: float, reports: int, due: bool
) -> None:
    assert is_overdue(point, seconds, reports) is due


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
        for seconds, lines in ((20, 1), (10, 1), (10, 2)):
            harness.clock.step(timedelta(seconds=seconds))
            monitor.scan()
            assert len(reported(caplog)) == lines
        stuck.go.set()
        await attempt
    line = reported(caplog)[0]
    assert (line["plugin"], line["point"], line["seconds"]) == ("devices", "pre_bind", 20.0)
    assert line["bindRequest"] == "default/train"
