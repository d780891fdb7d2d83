"""What is not decoded is recognized, and only its metadata are read: never those of another object."""

from typing import Any

import orjson
import pytest

from bowline.api.meta import METADATA_KIND
from bowline.kube.errors import KubeError, NoJSON, Unreadable
from bowline.kube.unreadable import (
    MAX_VALUES,
    has_too_many_values,
    parse_json,
    reduced_event,
    reduced_object,
    reduced_page,
)

MANY = MAX_VALUES + 1
IDENTITY = {
    "name": "pod",
    "namespace": "default",
    "uid": "u-1",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-02T00:00:00Z",
}
FIRST = {
    "name": "pod",
    "generateName": "p",
    "namespace": "default",
    "uid": "u-1",
    "resourceVersion": "7",
    "generation": 1,
}
METADATA = {**FIRST, **IDENTITY, "labels": {"a": 'x","name":"other","managedFields":[{"b":"c"}],"uid":"other'}}
SHORT = {"name": "pod", "uid": "u-1", "resourceVersion": "7"}
DEEP = b'{"f:a":' * 1_100 + b"1" + b"}" * 1_100


@pytest.mark.parametrize(
    ("content", "too_many"),
    [
        pytest.param({"empty": [{}] * MANY}, True, id="empty objects"),
        pytest.param({"labels": {f"k{number}": "" for number in range(MANY)}}, True, id="a map"),
        pytest.param({"args": ["\\"] * MANY}, True, id="texts that end in a backslash"),
        pytest.param({"groups": [1] * MANY}, True, id="numbers"),
        pytest.param({"args": ["a"] * (MAX_VALUES - 3)}, False, id="as many as are read"),
        pytest.param({"annotation": '{"a":"b","c":"d"},' * 14_000}, False, id="JSON of 256 KB in an annotation"),
    ],
)
def test_values_are_counted_without_decoding(content: Any, too_many: bool) -> None:
    assert has_too_many_values(orjson.dumps(content)) is too_many


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(b'{"a":' + DEEP + b"}\n", Unreadable, id="more levels than the reader takes"),
        pytest.param(b'{"a":"\\ud800"}', Unreadable, id="a lone surrogate"),
        pytest.param(b'{"a":"\xff"}', Unreadable, id="invalid UTF-8"),
        pytest.param(b'{"a":1e309}', Unreadable, id="an infinite number"),
        pytest.param(b'{"a":1' + b"0" * 400 + b"}", Unreadable, id="an infinite integer"),
        pytest.param(b'{"a":[' + b"1," * MANY + b"1]}", Unreadable, id="too many values"),
        pytest.param(b"", NoJSON, id="nothing"),
        pytest.param(b"<html>{}</html>", NoJSON, id="a page of a proxy"),
        pytest.param(b'{"a":"b', NoJSON, id="an object that was cut"),
        pytest.param(b'{"a":"b"} later', NoJSON, id="an object and more"),
        pytest.param(b"[1]", NoJSON, id="a list"),
    ],
)
def test_an_object_that_is_refused_differs_from_what_is_none(body: bytes, error: type[KubeError]) -> None:
    with pytest.raises(KubeError) as raised:
        parse_json(body)
    assert type(raised.value) is error


@pytest.mark.parametrize("metadata", [METADATA, SHORT])
@pytest.mark.parametrize("type_meta", [{"kind": "Pod", "apiVersion": "v1"}, {}])
@pytest.mark.parametrize(
    ("rest", "is_complete"),
    [
        pytest.param({"metadata": {"managedFields": [{"fieldsV1": "<deep>"}]}}, True, id="managedFields"),
        pytest.param({"metadata": {}, "spec": {"a": "<deep>"}}, False, id="no managedFields"),
        pytest.param({"metadata": {}, "spec": {"a": "<deep>", "managedFields": [{}]}}, False,
            id="managedFields of something else"),
    ],
)  # fmt: skip
def test_the_metadata_are_read_in_the_order_of_api_servers(
    metadata: Any, type_meta: Any, rest: Any, is_complete: bool
) -> None:
    body = {**type_meta, **rest, "metadata": {**metadata, **rest["metadata"]}}
    expectation = metadata if is_complete else {key: value for key, value in metadata.items() if key in IDENTITY}
    reduced = {"kind": METADATA_KIND, "metadata": expectation}
    assert reduced_object(text_of(body)) == reduced
    assert reduced_event(text_of({"type": "MODIFIED", "object": body})) == {"type": "MODIFIED", "object": reduced}
    meta = {"resourceVersion": "9", "continue": "token", "remainingItemCount": 3}
    page = reduced_page(text_of({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": [body]}))
    assert page == {"metadata": meta, "items": [reduced]}


def text_of(content: Any) -> bytes:
    return orjson.dumps(content).replace(b'"<deep>"', DEEP)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"type":"ERROR","object":{"kind":"Status","code":410}}',
        b"[1]",
        # The fields of a custom resource are sorted: what looks like an identity may be its tenant's.
        b'{"type":"ADDED","object":{"kind":"A","metadata":{"creationTimestamp":"","managedFields":[{"name":"other",'
        b'"uid":"u","resourceVersion":"7"}],"name":"own"}}}',
    ],
)
def test_an_unknown_form_is_not_reduced(text: bytes) -> None:
    assert (reduced_event(text), reduced_page(text), reduced_object(text)) == (None, None, None)
