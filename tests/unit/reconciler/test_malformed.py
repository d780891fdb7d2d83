"""Objects whose content has another type than the API's, as a foreign CRD may store them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reconciler.informers import transform_request
from reconciler.ttl import is_due
from shared.api.bindrequest import Phase, decode_bind_request
from shared.testing.builders import bind_request

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUCCEEDED = {"phase": "Succeeded"}
TIMES: list[Any] = [5, True, ["2020-01-01T00:00:00Z"], {"seconds": 5}, "yesterday"]


@pytest.mark.parametrize(
    "status", ["Succeeded", ["Succeeded"], 7, {"phase": {"is": "Succeeded"}}, {"phase": []}, None]
)
def test_a_status_of_another_type_reads_as_pending(status: Any) -> None:
    raw = {**bind_request("train", uid="u"), "status": status}
    raw["metadata"] |= {"uid": "r", "resourceVersion": "1"}
    kept = transform_request(raw)
    assert kept is not None
    request = decode_bind_request(kept)
    assert (request.phase, request.failed_attempts, request.next_attempt) == (Phase.PENDING, 0, None)
    assert not is_due(raw, timedelta(0), NOW)


@pytest.mark.parametrize("time", TIMES)
def test_a_completion_time_of_another_type_keeps_the_request(time: Any) -> None:
    raw = {**bind_request("train", uid="u"), "status": {**SUCCEEDED, "completionTime": time}}
    assert not is_due(raw, timedelta(0), NOW)


@pytest.mark.parametrize("time", TIMES)
def test_a_next_attempt_of_another_type_is_none(time: Any) -> None:
    raw = {**bind_request("train", uid="u"), "status": {"nextAttemptTime": time}}
    raw["metadata"] |= {"uid": "r", "resourceVersion": "1"}
    assert decode_bind_request(raw).next_attempt is None


def test_a_null_in_the_metadata_reads_as_absent() -> None:
    raw = bind_request("train")
    given = decode_bind_request(raw)
    fields = ("namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "finalizers", "labels")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": None}
    nulls = {**raw["metadata"], **dict.fromkeys(fields), "ownerReferences": [owner]}
    request = decode_bind_request({**raw, "metadata": nulls})
    assert request.key == ("", "train")
    assert (request.uid, request.resource_version, request.generation) == ("", "", given.generation)
    assert (request.finalizers, request.pod_uid) == ((), "")
