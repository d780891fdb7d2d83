"""Failures of the API server: however long they last, they use no attempt and end no request."""

from datetime import timedelta

from tests.reconciler.stage import Hold, Scripted, Stage
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
