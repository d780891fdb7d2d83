"""The finalizer from its addition to its removal: a request fails only when its side effects are undone."""

from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until, until_awaited


def conditions(status: Mapping[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status.get("conditions") or ()}


async def test_a_request_fails_only_when_its_rollback_is_complete(stage: Stage) -> None:
    is_in_use, refusals = True, 0

    async def fail(_: BindContext) -> Status:
        return Status.fatal("taken")

    async def undo(_: BindContext) -> Status:
        nonlocal refusals
        refusals += is_in_use
        return Status.retry("it is still in use") if is_in_use else Status.ok()

    plugin = Scripted(effects=True, pre_bind=fail, rollback=undo)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        status = await until_awaited(stage.status, lambda s: s.get("reason", "").startswith("RollbackFailed"))
        assert status["phase"] == "Pending"
        assert status["failure"]["reason"] == "Rejected"
        assert conditions(status)["RolledBack"] == "False"
        assert (await stage.request())["metadata"]["finalizers"] == [names.FINALIZER]
        await until(lambda: refusals >= 3)
        is_in_use = False
        final_status = await stage.phase("pod", "Failed")
        assert "finalizers" not in (await stage.request())["metadata"]
    assert conditions(final_status) == {"Bound": "False", "RolledBack": "True"}
    assert final_status["reason"].startswith("Rejected: ")
    assert plugin.points("pod") == ["pre_bind", *["rollback"] * (refusals + 1)]
    assert (await stage.events()).count("RollbackFailed") == 1
