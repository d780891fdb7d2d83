"""Texts with too many values are recognized without decoding them, and only their identity is read."""

from typing import Any

import orjson
import pytest

from bowline.kube import oversized
from bowline.kube.oversized import MAX_VALUES, has_too_many_values, is_reduced, reduced_event, reduced_page

MANY = MAX_VALUES + 1
METADATA = {
    "name": "pod",
    "generateName": "p",
    "namespace": "default",
    "uid": "u-1",
    "resourceVersion": "7",
    "generation": 1,
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-02T00:00:00Z",
    "labels": {"a": 'x","name":"other'},
}
IDENTITY = {key: METADATA[key] for key in oversized._FIELDS}


@pytest.mark.parametrize(
    ("content", "too_many"),
    [
        pytest.param({"env": [{"name": "A"}] * MANY}, True, id="objects of one field"),
        pytest.param({"empty": [{}] * MANY}, True, id="empty objects"),
        pytest.param({"labels": {f"k{number}": "" for number in range(MANY)}}, True, id="a map"),
        pytest.param({"args": ["a"] * (MANY + 1)}, True, id="a list of texts"),
        pytest.param({"args": ["a"] * (MAX_VALUES - 1)}, False, id="as many as are read"),
        pytest.param({"annotation": "1," * MANY}, False, id="commas in a text"),
        pytest.param(
            {"annotation": '{"a":"b","c":"d"},' * 14_000}, False, id="JSON in an annotation of the largest size"
        ),
        pytest.param({"annotation": "x" * 3_000_000}, False, id="a long text"),
    ],
)
def test_values_are_counted_without_decoding(content: Any, too_many: bool) -> None:
    assert has_too_many_values(orjson.dumps(content)) is too_many


@pytest.mark.parametrize("metadata", [METADATA, {"name": "pod", "uid": "u-1", "resourceVersion": "7"}])
@pytest.mark.parametrize("type_meta", [{"kind": "Pod", "apiVersion": "v1"}, {}])
def test_the_identity_is_read_in_the_order_of_api_servers(metadata: Any, type_meta: Any) -> None:
    body = {**type_meta, "metadata": metadata, "spec": {"env": [{}]}}
    expectation = {key: value for key, value in metadata.items() if key in IDENTITY}
    event = reduced_event(orjson.dumps({"type": "MODIFIED", "object": body}))
    assert event == {"type": "MODIFIED", "object": {"kind": oversized.KIND, "metadata": expectation}}
    assert is_reduced(event["object"])
    meta = {"resourceVersion": "9", "continue": "token", "remainingItemCount": 3}
    page = reduced_page(orjson.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": [body]}))
    assert page == {"metadata": meta, "items": [{"kind": oversized.KIND, "metadata": expectation}]}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"type":"ERROR","object":{"kind":"Status","code":410}}', b"[1]"])
def test_an_unknown_form_is_not_reduced(text: bytes) -> None:
    assert reduced_event(text) is None
    assert reduced_page(text) is None
