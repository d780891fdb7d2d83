"""Requests and pods that are deleted or recreated during an attempt."""

from bowline.api import names
from bowline.framework.interface.status import Fatal
from bowline.framework.reason import Reason
from tests.reconciler.stage import Hold, Scripted, Stage


async def test_a_request_deleted_while_it_is_prepared_is_cancelled_and_undone(stage: Stage) -> None:
    hold = Hold()
    plugin = Scripted(effects=True, pre_bind=hold)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        await hold.reached.wait()
        assert (await stage.request())["metadata"]["finalizers"] == [names.FINALIZER]
        await stage.withdraw()
        await stage.request_deleted()
    assert hold.cancelled
    assert plugin.points("pod") == ["pre_bind", "rollback"]
    why = plugin.reasons[0]
    assert isinstance(why, Fatal)
    assert why.reason is Reason.SUPERSEDED
    assert "nodeName" not in (await stage.pod())["spec"]
    assert await stage.events() == []
