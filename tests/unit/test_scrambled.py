"""The mode without texts replaces what people read, and nothing that a program reads."""

import logging
from datetime import UTC, datetime

import pytest

from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.plugin_status import Code, Status
from bowline.kube import events
from bowline_reconciler.decide import report
from tests.scrambled import scrambled_texts, words

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_equal_texts_have_equal_words() -> None:
    assert words("no seat") == words("no seat")
    assert words("no seat") != words("no seats")
    assert words("") == ""


@pytest.mark.wording
def test_texts_are_replaced_until_the_end(caplog: pytest.LogCaptureFixture) -> None:
    status = Status.retry("no seat")
    note = events.EventNote(ObjectRef("v1", "Pod", ObjectKey("n", "p")), "Waiting", "no seat")
    with scrambled_texts():
        assert (status.code, status.message) == (Code.RETRY, words("no seat"))
        assert report.reason_text("Retrying", "no seat") == f"Retrying: {words('no seat')}"
        body = events.event_body(note, "name", "instance", NOW)
        assert (body["reason"], body["note"]) == ("Waiting", words("no seat"))
        logging.getLogger("bowline.test").warning("no %s", "seat", extra={"pod": "p"})
        assert (caplog.records[-1].getMessage(), caplog.records[-1].__dict__["pod"]) == (words("no seat"), "p")
    assert status.message == "no seat"
    assert report.reason_text("Retrying", "no seat") == "Retrying: no seat"
