"""The fields of an event."""

from datetime import UTC, datetime

import pytest

from bowline.api.meta import ObjectKey, ObjectRef, ObjectUID
from bowline.kube.events import EventNote, event_body, event_name

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
POD = ObjectRef("v1", "Pod", ObjectKey("ns", "a"), ObjectUID("u1"))
REQUEST = ObjectRef("scheduling.run.ai/v1alpha2", "BindRequest", ObjectKey("ns", "a-br"), ObjectUID("u2"))


def test_golden_event() -> None:
    event = EventNote(POD, "Bound", "Pod bound to node n", related=REQUEST)
    assert event_body(event, "a.17", "host_1", NOW) == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a.17", "namespace": "ns"},
        "eventTime": "2026-01-02T03:04:05.678901Z",
        "type": "Normal",
        "reason": "Bound",
        "action": "Binding",
        "note": "Pod bound to node n",
        "reportingController": "bowline",
        "reportingInstance": "host_1",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "a", "uid": "u1"},
        "related": {
            "apiVersion": "scheduling.run.ai/v1alpha2",
            "kind": "BindRequest",
            "namespace": "ns",
            "name": "a-br",
            "uid": "u2",
        },
    }


def test_an_event_about_a_cluster_scoped_object_is_in_the_default_namespace() -> None:
    node = ObjectRef("v1", "Node", ObjectKey("", "n"))
    assert event_body(EventNote(node, "R", "n"), "x", "i", NOW)["metadata"]["namespace"] == "default"


@pytest.mark.parametrize(
    ("regarding", "expectation"),
    [
        pytest.param("x" * 253, "x" * 248 + ".00ff", id="the longest name is cut"),
        pytest.param("x" * 246 + "-." + "y" * 5, "x" * 246 + ".00ff", id="cut where a part may end"),
    ],
)
def test_names(regarding: str, expectation: str) -> None:
    name = event_name(regarding, "00ff")
    assert name == expectation
    assert len(name) <= 253


@pytest.mark.parametrize(
    ("other_note", "same"),
    [
        pytest.param(EventNote(POD, "Bound", "n", related=REQUEST), True, id="about another second object"),
        pytest.param(EventNote(POD, "Bound", "m"), False, id="another note"),
        pytest.param(EventNote(POD, "BindingRetry", "n"), False, id="another reason"),
        pytest.param(EventNote(ObjectRef("v1", "Pod", ObjectKey("ns", "a"), ObjectUID("u3")), "Bound", "n"), False,
            id="another pod of the same name"),
    ],
)  # fmt: skip
def test_what_is_a_repeat(other_note: EventNote, same: bool) -> None:
    assert (EventNote(POD, "Bound", "n").series == other_note.series) is same
