"""A write that is accepted and not stored is a failure; otherwise it would be repeated in a loop."""

import asyncio
import json
from random import Random
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectUID, key_of
from bowline.api.request_facts import carried_status
from bowline.kube.client import KubeClient
from bowline.kube.errors import NotStoredError
from bowline.kube.object_client import Body
from bowline.kube.stored import require_stored
from bowline.runtime.tasks import cancel_and_wait
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.decide.actions import PodBound
from bowline_reconciler.drive.pod_conditions import MAX_PENDING, PodConditions
from bowline_reconciler.drive.writer import Writer
from tests.builders import request
from tests.waiting import until


class Storing(KubeClient):
    """Stores each patch of metadata and status, except the field that a webhook removes, and the metadata it adds."""

    def __init__(self, removed: str = "", **added: Any) -> None:
        self.clock, self.random = SteppedClock(), Random(0)  # noqa: S311 - jitter
        self.removed, self.added, self.patches = removed, added, 0

    async def patch(self, *args: Any, essential: Body | None = None, **options: Any) -> dict[str, Any]:
        self.patches += 1
        resource, _, _, body = args
        metadata, status = (
            {key: value for key, value in body.get(part, {}).items() if key != self.removed}
            for part in ("metadata", "status")
        )
        reply = stored(bind_request(), version="2") | {
            "metadata": stored(bind_request())["metadata"] | metadata | self.added
        }
        reply["status"] = status
        require_stored(resource, key_of(reply), essential or {}, reply)
        return reply


def writer(client: KubeClient) -> Writer:
    return Writer(client, lambda note: None, lambda after: None, PodConditions(client))


async def test_the_stored_request_is_returned() -> None:
    assert (await writer(Storing()).set_owner(request(), ObjectUID("pod-uid"))).pod_uid == "pod-uid"
    assert (await writer(Storing()).add_finalizer(request(), ["a"])).finalizers == (names.FINALIZER,)


async def test_a_former_leaders_effects_of_all_plugins_stay_those_of_all() -> None:
    """A scheduler has set the finalizer itself: of which plugins there are effects is not recorded."""
    taken_over = await writer(Storing()).add_finalizer(request(finalizers=[names.FINALIZER]), ["a"])
    assert taken_over.effects is None
    assert names.TAKEN_OVER in taken_over.raw["metadata"]["annotations"]


@pytest.mark.parametrize("removed", ["finalizers", "annotations"])
async def test_a_finalizer_that_a_webhook_removes_is_a_failure(removed: str) -> None:
    with pytest.raises(NotStoredError, match=rf"metadata\.{removed}"):
        await writer(Storing(removed)).add_finalizer(request(), ["a"])


async def test_a_finalizer_that_a_webhook_puts_back_is_a_failure() -> None:
    client = Storing(finalizers=[names.FINALIZER])
    with pytest.raises(NotStoredError, match=r"metadata\.finalizers"):
        await writer(client).drop_finalizer(request(finalizers=[names.FINALIZER]))


async def test_a_field_of_the_status_that_is_dropped_once_is_written_for_the_next_request() -> None:
    """By a policy of one namespace, or by a CRD that is replaced."""
    client = Storing("suggestion")
    writes, status = writer(client), {"phase": "Failed", "reason": "NodeGone: n", "suggestion": "RescheduleElsewhere"}
    carried = await writes.patch_status(request(), status)
    assert carried_status(carried.raw) == {"suggestion": "RescheduleElsewhere"}
    seen = decode_bind_request({**carried.raw, "status": {k: v for k, v in status.items() if k != "suggestion"}})
    assert (await writes.patch_status(seen, status), client.patches) == (seen, 2), "it is not written again"
    client.removed = ""
    assert (await writes.patch_status(request(), status)).raw["status"] == status


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_final_phase_that_a_webhook_removes_is_not_reported(phase: str) -> None:
    client = Storing("phase")
    writes = writer(client)
    with pytest.raises(NotStoredError, match=rf"status\.phase: null is stored instead of \"{phase}\""):
        await writes.patch_status(request(), {"phase": phase, "reason": "a"})
    assert (await writes.patch_status(request(), {"phase": "Pending", "reason": "b"})).status["reason"] == "b"
    client.removed = ""
    assert (await writes.patch_status(request(), {"phase": phase, "reason": "a"})).phase == phase


@pytest.mark.parametrize(
    ("phase", "carried"),
    [
        ("Failed", {"phase": "Pending"}),
        ("Failed", {"conditions": [{"message": "\ud800"}]}),  # which is not encoded again
        ("Succeeded", {"conditions": [{"message": "other"}]}),
    ],
)
async def test_no_annotation_keeps_an_end_from_the_status(phase: str, carried: dict[str, Any]) -> None:
    """Whoever may write annotations may write this one, and a foreign CRD may have been replaced since."""
    raw = request().raw
    annotations = {names.CARRIED_STATUS: json.dumps(carried)}
    before = decode_bind_request({**raw, "metadata": {**raw["metadata"], "annotations": annotations}})
    status = {"phase": phase, "conditions": [{"type": "Bound", "message": "stored"}]}
    assert (await writer(Storing()).patch_status(before, status)).raw["status"] == status


class Hanging(Storing):
    """Answers no patch of a pod, as while a webhook hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: list[str] = []

    async def patch(self, *args: Any, essential: Body | None = None, **options: Any) -> dict[str, Any]:
        self.pods.append(f"{args[1]}/{args[2]}")
        await asyncio.Event().wait()
        return {}


async def test_a_report_that_is_written_leaves_its_room() -> None:
    client = Storing()
    conditions, failure = PodConditions(client), PodBound("False", "BindingFailed", "why")
    running = asyncio.ensure_future(conditions.run())
    await asyncio.sleep(0)
    for start in (0, MAX_PENDING):
        for number in range(start, start + MAX_PENDING):
            conditions.schedule(stored(pod(f"p{number}")), failure)
        await until(lambda: len(conditions) == 0)
    await cancel_and_wait(running)


async def test_the_reports_of_one_namespace_that_hang_leave_room_for_those_of_another() -> None:
    client = Hanging()
    conditions, failure = PodConditions(client), PodBound("False", "BindingFailed", "why")
    running = asyncio.ensure_future(conditions.run())
    await asyncio.sleep(0)
    for number in range(MAX_PENDING + 1):
        conditions.schedule(stored(pod(f"p{number}", namespace="many")), failure)
    conditions.schedule(stored(pod("p", namespace="few")), failure)
    assert len(conditions) == MAX_PENDING
    await until(lambda: "few/p" in client.pods)
    await cancel_and_wait(running)
