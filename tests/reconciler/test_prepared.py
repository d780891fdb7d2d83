"""Prepared is reported only for what an attempt has prepared; a bind plugin's OK is verified before Succeeded."""

from collections.abc import Mapping
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.resources import PODS
from tests.reconciler.stage import Scripted, Stage

SHARE: Mapping[str, Any] = {
    "receivedResourceType": "Fraction",
    "receivedGPU": {"count": 1, "portion": "0.5"},
    "selectedGPUGroups": ["g"],
}


async def bind(stage: Stage, annotations: Mapping[str, str] | None = None) -> None:
    """Bind the pod as another component does."""
    body = {
        "metadata": {"name": "pod", "annotations": dict(annotations or {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-0"},
    }
    await stage.client.create(PODS, stage.namespace, body, name="pod", subresource="binding")


def prepared(status: Mapping[str, Any]) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == "Prepared")


async def test_a_binding_has_the_uid_of_the_request_that_prepared_the_pod(stage: Stage) -> None:
    async with stage.working(Scripted()):
        await stage.create_pod()
        uid = await stage.request_bind()
        status = await stage.phase("pod", "Succeeded")
    assert (await stage.pod())["metadata"]["annotations"][names.PREPARED_FOR] == uid
    assert prepared(status)[0] == "True"


async def test_a_share_bound_by_another_component_is_not_reported_prepared(stage: Stage) -> None:
    await stage.create_pod()
    await stage.request_bind(**SHARE)
    await bind(stage)
    plugin = Scripted(effects=True)
    async with stage.working(plugin):
        status = await stage.phase("pod", "Succeeded")
    assert "pre_bind" not in plugin.points("pod")
    assert prepared(status) == ("Unknown", "NotPrepared")
    assert await stage.events() == ["NotPrepared"]


async def test_a_plain_pod_bound_by_another_component_is_bound_without_a_warning(stage: Stage) -> None:
    await stage.create_pod()
    await stage.request_bind()
    await bind(stage)
    async with stage.working(Scripted()):
        status = await stage.phase("pod", "Succeeded")
    assert prepared(status)[0] == "Unknown"
    assert await stage.events() == ["Bound"]


async def test_a_pod_that_a_process_before_this_one_has_bound_is_reported_prepared(stage: Stage) -> None:
    await stage.create_pod()
    uid = await stage.request_bind(**SHARE)
    await bind(stage, {names.PREPARED_FOR: uid})
    async with stage.working(Scripted(effects=True)):
        status = await stage.phase("pod", "Succeeded")
    assert prepared(status)[0] == "True"


@pytest.mark.parametrize("binds", [True, False], ids=["bound", "not bound"])
async def test_a_third_party_bind_is_confirmed_by_a_read_of_the_pod(stage: Stage, binds: bool) -> None:
    async def return_ok(_: BindContext) -> Status:
        if binds:
            await bind(stage)
        return Status.ok()

    async with stage.working(Scripted(bind=return_ok)):
        await stage.create_pod()
        await stage.request_bind(backoffLimit=0)
        status = await stage.phase("pod", "Succeeded", "Failed")
    assert ("nodeName" in (await stage.pod())["spec"]) is binds
    assert status["phase"] == ("Succeeded" if binds else "Failed")
    if binds:
        assert prepared(status)[0] == "True"
    else:
        assert status["failure"]["reason"] == "BackoffLimitExceeded"
