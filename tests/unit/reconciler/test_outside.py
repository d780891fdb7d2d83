"""The report of requests that no shard serves: one event about each, by one leader, within a bound."""

import pytest
from prometheus_client import Gauge

from bowline.api.meta import Object
from bowline.kube.events import EventNote
from bowline_reconciler.observe.outside import EVENTS_PER_CHECK, OutsideShards

SHARDS = {"team=a", "team in (b,c)"}


def request(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": labels}}


@pytest.fixture
def count() -> Gauge:
    return Gauge("outside", "", registry=None)


def test_each_request_has_one_event_while_it_is_outside(count: Gauge) -> None:
    notes: list[EventNote] = []
    outside = OutsideShards(count, notes.append)
    first, second = request("first", team="x"), request("second")
    outside.announce([first], SHARDS, sends_events=True)
    outside.announce([first, second], SHARDS, sends_events=True)
    assert [(note.regarding.key.name, note.regarding.uid, note.reason, note.type) for note in notes] == [
        ("first", "uid-first", "NotServed", "Warning"),
        ("second", "uid-second", "NotServed", "Warning"),
    ]
    assert "its labels are team=x; shards: team in (b,c); team=a. " in notes[0].note
    assert "its labels are none; " in notes[1].note
    outside.announce([], SHARDS, sends_events=True)
    outside.announce([first], SHARDS, sends_events=True)
    assert [note.regarding.key.name for note in notes] == ["first", "second", "first"]


def test_leaders_of_other_shards_only_count(count: Gauge) -> None:
    notes: list[EventNote] = []
    OutsideShards(count, notes.append).announce([request("first")], SHARDS, sends_events=False)
    OutsideShards(count, notes.append).announce([request("first")], SHARDS, sends_events=False)
    assert notes == []
    assert [sample.value for metric in count.collect() for sample in metric.samples] == [1]


def test_many_are_reported_over_several_checks(count: Gauge) -> None:
    notes: list[EventNote] = []
    outside = OutsideShards(count, notes.append)
    requests = [request(str(number)) for number in range(EVENTS_PER_CHECK + 1)]
    outside.announce(requests, SHARDS, sends_events=True)
    assert len(notes) == EVENTS_PER_CHECK
    for _ in range(2):
        outside.announce(requests, SHARDS, sends_events=True)
    assert sorted(note.regarding.key.name for note in notes) == sorted(map(str, range(EVENTS_PER_CHECK + 1)))
