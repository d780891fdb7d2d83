"""What the reconciler reports of itself: gauges and counters."""

import asyncio
import logging
from datetime import timedelta

import pytest

from bowline.api.meta import ObjectKey
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import PluginConfig
from bowline.framework.interface.status import Status
from bowline.testing.clock import START
from bowline_reconciler.drive.state import Awaiting, Progress
from bowline_reconciler.observe import LOG_FAILURES_EVERY_S
from tests.unit.reconciler.watching import Stuck, Watched, context


class StuckVolumes(Stuck):
    """Another plugin that hangs."""

    name = "volumes"


def running(harness: Watched, *contexts: BindContext) -> list[Progress]:
    """Begin a reconcile of each."""
    return [harness.states.take_up(c.request.key, c.request, START).progress for c in contexts]


def waiting(harness: Watched) -> dict[str, float | None]:
    return {
        plugin: count
        for plugin in ("bowline", "volumes", "devices", "binder")
        if (count := harness.value("bowline_requests_waiting", plugin=plugin))
    }


def test_waits_are_shown_by_the_plugin_that_asked_until_they_end() -> None:
    harness = Watched()
    assert harness.value("bowline_requests_waiting", plugin="volumes") == 0
    for name, plugin in (("train", "volumes"), ("second", ""), ("third", "devices")):
        harness.states.ensure(context(name).request).stage = Awaiting((), plugin)
    assert waiting(harness) == {"volumes": 1, "bowline": 1, "devices": 1}
    running(harness, context("third"))
    harness.states.drop(context("train").request.key)
    assert waiting(harness) == {"bowline": 1}


async def test_running_passes_are_shown_by_their_point() -> None:
    harness, first, second = Watched(), context("a"), context("b")
    volumes, devices = StuckVolumes(), Stuck()

    def at(step: str) -> float | None:
        return harness.value("bowline_attempts_in_flight", step=step)

    reconciles = running(harness, first, second)
    assert (at("reconcile"), at("pre_bind")) == (2, 0)
    attempt = asyncio.create_task(Runner((volumes, devices), harness.caller).run_pre_bind(first))
    await volumes.entered.wait()
    assert (at("reconcile"), at("pre_bind")) == (1, 1)
    volumes.go.set()
    await devices.entered.wait()
    assert (at("reconcile"), at("pre_bind")) == (1, 1)
    devices.go.set()
    await attempt
    assert (at("reconcile"), at("pre_bind")) == (2, 0)
    for progress in reconciles:
        progress.since = None
    assert (at("reconcile"), at("pre_bind")) == (0, 0)


async def test_calls_and_attempts_are_counted_and_measured() -> None:
    harness, c = Watched(), context()

    class Failing(BindingPlugin):
        name = "devices"

        async def pre_bind(self, ctx: BindContext) -> Status:
            harness.clock.step(timedelta(milliseconds=4))
            return Status.fatal("no")

    since = harness.clock.monotonic()
    status = await Runner((Failing(PluginConfig(), Settings()),), harness.caller).run_pre_bind(c)
    harness.observation.attempt_ended(c, status, since)
    calls = {"plugin": "devices", "point": "pre_bind", "code": "FATAL"}
    assert harness.value("bowline_plugin_duration_seconds_sum", **calls) == pytest.approx(0.004)
    assert harness.value("bowline_attempts_total", outcome="FATAL") == 1
    assert harness.value("bowline_attempt_duration_seconds_sum", outcome="FATAL") == pytest.approx(0.004)


def test_an_error_outside_of_attempts_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    harness = Watched()

    def raised() -> int:
        for _ in range(3):
            harness.observation.plugin_raised("devices", "applies", None, KeyError("typo"))
        return sum(record.__dict__.get("point") == "applies" for record in caplog.records)

    assert raised() == 1
    harness.clock.step(timedelta(seconds=61))
    assert raised() == 2
    assert harness.value("bowline_plugin_errors_total", plugin="devices", point="applies") == 6


def test_thousands_of_failing_requests_are_one_line_every_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    harness = Watched()
    with caplog.at_level(logging.WARNING):
        for count in range(1, 11):
            for number in range(1_000):
                harness.observation.on_transient_failure(
                    ObjectKey("default", str(number)), "unreachable", is_quiet=count <= 3
                )
            harness.clock.step(timedelta(seconds=LOG_FAILURES_EVERY_S / 5))
    _, second = caplog.records
    assert second.__dict__["failures"] == 5_000
