"""A plugin with a common mistake, in a reconciler on a real API server: no pod is bound unprepared."""

from collections.abc import Callable
from typing import Any

import pytest

from bowline.framework.config import Binding
from tests.reconciler.stage import NO_FLIGHT, Scripted, Stage
from tests.waiting import until_awaited

NO_RETRY = Binding(backoff_limit=0, in_flight_timeout=NO_FLIGHT)


def typo(*_: Any) -> Any:
    raise KeyError("typo")


@pytest.mark.parametrize(
    ("point", "act"),
    [
        pytest.param("applies", lambda *_: None, id="applies returns None"),
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
