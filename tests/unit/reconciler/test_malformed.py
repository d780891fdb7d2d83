"""Objects whose content has another type than the API's, as a foreign CRD may store them."""

import os
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase, decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.framework.config import Settings
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.decide.actions import Fail, Wait
from bowline_reconciler.decide.decide import decide
from bowline_reconciler.decide.report import (
    PREPARED_BY_US,
    failure_report,
    retry_report,
    success_report,
    waiting_status,
)
from bowline_reconciler.decide.snapshot import Snapshot
from bowline_reconciler.term.releases import Releases
from bowline_reconciler.term.ttl import is_due
from bowline_reconciler.watch.informers import transform_request
from tests.unit.json_values import json_values

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXAMPLES = int(os.environ.get("BOWLINE_EXAMPLES", "20"))
FIELDS = (
    *("phase", "reason", "conditions", "type", "status", "failedAttempts", "startTime", "nextAttemptTime"),
    *("podName", "selectedNode", "receivedGPU", "receivedResourceType", "backoffLimit", "resourceClaimAllocations"),
)
JSON = json_values(st.sampled_from(FIELDS))


@pytest.mark.parametrize(
    "status", ["Succeeded", ["Succeeded"], 7, {"phase": {"is": "Succeeded"}}, {"phase": []}, None]
)
def test_a_status_of_another_type_reads_as_pending(status: Any) -> None:
    raw = {**bind_request("train", uid="u"), "status": status}
    raw["metadata"] |= {"uid": "r", "resourceVersion": "1"}
    cache_entry = transform_request(raw)
    assert cache_entry is not None
    request = decode_bind_request(cache_entry)
    assert (request.phase, request.failed_attempts, request.next_attempt) == (Phase.PENDING, 0, None)
    assert not is_due(raw, timedelta(0), NOW)


async def test_a_succeeded_request_of_another_name_than_its_pod_keeps_no_finalizer() -> None:
    """Nothing was done for it; no pod can be read for it, either."""
    raw = stored(bind_request("pod", uid="u"), name="other", finalizers=[names.FINALIZER]) | {
        "status": {"phase": "Succeeded"}
    }
    drops: list[str] = []

    async def get_request(_: ObjectKey) -> Any:
        return raw

    async def drop_finalizer(request: BindRequest) -> None:
        drops.append(request.key.name)

    parts: Any = SimpleNamespace(
        random=Random(0),  # noqa: S311 - jitter
        clock=SteppedClock(),
        get_request=get_request,
        drop_finalizer=drop_finalizer,
        holders=lambda _: ("a",),
        with_live_pod=None,
    )
    await Releases(parts, parts, parts, parts, parts)._reconcile(ObjectKey("default", "other"))
    assert drops == ["other"]


def test_a_null_in_the_metadata_reads_as_absent() -> None:
    raw = bind_request("train")
    original_request = decode_bind_request(raw)
    fields = ("namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "finalizers", "labels")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": None}
    nulls = {**raw["metadata"], **dict.fromkeys(fields), "ownerReferences": [owner]}
    request = decode_bind_request({**raw, "metadata": nulls})
    assert request.key == ("", "train")
    assert (request.uid, request.resource_version, request.generation) == ("", "", original_request.generation)
    assert (request.finalizers, request.pod_uid) == ((), "")


@pytest.mark.parametrize("node", ["a,b", "a=b", "A", "a\n"])
def test_a_node_that_no_field_selector_can_contain_makes_the_spec_invalid(node: str) -> None:
    request = decode_bind_request(bind_request("train", node))
    assert [error.path for error in request.errors] == ["spec.selectedNode"]


def test_long_labels_and_annotations_of_a_request_are_not_kept() -> None:
    raw = bind_request("train")
    short = {"bowline.dev/effects": "a", "team": "research"}
    large = {"notes": "x" * 250_000} | {f"key-{number:05}": "y" * 60 for number in range(3000)}
    raw["metadata"] |= {"annotations": large | short, "labels": short | large}
    cache_entry = transform_request(raw)
    assert cache_entry is not None
    for field in ("labels", "annotations"):
        values = cache_entry["metadata"][field]
        assert short.items() <= values.items()
        assert 8000 < sum(len(key) + len(value) for key, value in values.items()) <= 8192


@settings(max_examples=EXAMPLES)
@given(status=JSON, spec=JSON | st.just(bind_request("train")["spec"]))
def test_any_spec_and_status_can_be_decided_and_reported(status: Any, spec: Any) -> None:
    raw = bind_request("train") | {"spec": spec, "status": status}
    raw["metadata"] |= {"uid": "r", "resourceVersion": "1"}
    cache_entry = transform_request(raw)
    assert cache_entry is not None
    request = decode_bind_request(cache_entry)
    decide(Snapshot(request), Settings())
    retry_report(request, Status.retry("why"), "history", NOW, NOW, timedelta())
    waiting_status(request, Wait((), "why", timedelta(), "plugin"), NOW, NOW)
    success_report(request, PREPARED_BY_US, None, NOW, NOW)
    failure_report(request, Fail(Status.fatal("why", Reason.POD_GONE)), True, None, NOW)
    is_due(raw, timedelta(0), NOW)
