"""Prepared is reported only for what an attempt has prepared; every bind is verified, whoever has bound."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from bowline.framework.binding.post import bind_by_post
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Done, Status
from bowline.kube.calls import Call
from bowline.kube.errors import NoResponse
from bowline.kube.resources import PODS
from bowline.kube.writes import Ledger
from tests.reconciler.stage import Scripted, Stage


def prepared(status: Mapping[str, Any]) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == "Prepared")


# --- one verification, whoever has bound ---

ANNOTATION, LABEL = "example.com/device", "example.com/shared"


class WithContent(Scripted):
    """A plugin of whose Binding the pod needs an annotation and a label."""

    async def pre_bind(self, ctx: BindContext) -> Status:
        status = await super().pre_bind(ctx)
        return Status.ok({ANNOTATION: "0"}, {LABEL: "yes"}) if isinstance(status, Done) else status

    async def post_bind(self, ctx: BindContext) -> None:
        assert ctx.pod is not None
        assert ctx.pod["spec"]["nodeName"] == ctx.spec.selected_node, "post_bind receives the bound pod"
        await super().post_bind(ctx)


Store = Callable[[Stage, BindContext], Awaitable[None]]


def stored(*, without: str = "", node: str = "gpu-node-0") -> Store:
    """Bind the pod by a Binding as it is stored: ``without`` a key, to that node."""

    async def store(stage: Stage, ctx: BindContext) -> None:
        content = {
            kind: {key: value for key, value in entries.items() if key != without}
            for kind, entries in (("annotations", ctx.annotations), ("labels", ctx.labels))
        }
        body = {"metadata": {"name": "pod", **content}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        await stage.client.create(PODS, stage.namespace, body, name="pod", subresource="binding")

    return store


async def acknowledged(stage: Stage, ctx: BindContext, store: Store) -> Status:
    """The API server answers 201 and stores something else, as with an admission policy."""
    await store(stage, ctx)
    ctx.posts.acknowledged = True
    return Status.ok()


async def reply_lost(stage: Stage, ctx: BindContext, store: Store) -> Status:
    await store(stage, ctx)
    binding = Call("POST", "create", PODS, ctx.request.pod_key, "binding")
    with Ledger(ctx.client.clock.monotonic).sending(binding) as send:
        assert send is not None
        send()
        raise NoResponse("no reply")


async def by_another_client(stage: Stage, ctx: BindContext, store: Store) -> Status:
    """The reconciler's own Binding is answered 409."""
    await store(stage, ctx)
    return await bind_by_post(ctx)


@pytest.mark.parametrize(
    ("way", "store", "phase", "named"),
    [
        pytest.param(acknowledged, stored(), "Succeeded", "", id="as asked"),
        pytest.param(acknowledged, stored(node="gpu-node-2"), "Failed", "BoundElsewhere", id="other node"),
        pytest.param(reply_lost, stored(without=LABEL), "Succeeded", LABEL, id="no reply, label missing"),
        pytest.param(by_another_client, stored(node="gpu-node-2"), "Failed", "BoundElsewhere",
            id="by another client elsewhere"),
    ],
)  # fmt: skip
async def test_a_bind_is_verified_whoever_has_bound(
    stage: Stage, way: Callable[[Stage, BindContext, Store], Awaitable[Status]], store: Store, phase: str, named: str
) -> None:
    plugin = WithContent(effects=True, bind=lambda ctx: way(stage, ctx, store))
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind(backoffLimit=0)
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert status["phase"] == phase
    if phase == "Failed":
        assert status["failure"]["reason"] == named
        assert plugin.points("pod") == ["pre_bind", "rollback"], "no post_bind"
        return
    assert plugin.points("pod") == ["pre_bind", "post_bind"]
    assert prepared(status) == (("Unknown", "NotPrepared") if named else ("True", "Prepared"))
    assert await stage.events() == ["NotPrepared" if named else "Bound"]
    (condition,) = (entry for entry in status["conditions"] if entry["type"] == "Prepared")
    assert named in condition["message"]
