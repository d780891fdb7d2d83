"""A mode of the tests in which every text for people is random words: ``pytest --scrambled-texts``.

Statuses, conditions, events, errors of fields and log lines are replaced where they are rendered, equal texts by
equal words. What still passes reads fields, not sentences; a test about wording fails, and so would a program that
parses text. Processes that a test starts keep their texts.
"""

import logging
import random
import string
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bowline.api.field_error import FieldError
from bowline.framework.plugin_status import Status
from bowline.kube import events
from bowline_reconciler.decide import report

_LETTERS = string.ascii_lowercase


def words(text: str) -> str:
    """Return three random words that follow from the text; an empty text stays empty."""
    chance = random.Random(text)  # noqa: S311 - not for secrets
    return " ".join("".join(chance.choices(_LETTERS, k=7)) for _ in range(3)) if text else text


@contextmanager
def scrambled_texts() -> Iterator[None]:
    """Replace every text until the block ends."""
    message: Any = Status.message
    reason_text, conditions, body = report.reason_text, report.conditions, events.event_body
    record = logging.getLogRecordFactory()

    def scrambled_record(*args: Any, **options: Any) -> logging.LogRecord:
        made = record(*args, **options)
        if made.name.startswith("bowline"):
            made.msg, made.args = words(made.getMessage()), ()
        return made

    def scrambled_conditions(request: Any, updates: Any, now: Any) -> Any:
        return conditions(request, {k: (status, why, words(text)) for k, (status, why, text) in updates.items()}, now)

    def scrambled_body(*args: Any, **options: Any) -> Any:
        made = body(*args, **options)
        return {**made, "note": words(made["note"])}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Status, "message", property(lambda status: words(message.fget(status))))
        patch.setattr(FieldError, "__str__", lambda error: words(error.path + error.message))
        patch.setattr(report, "reason_text", lambda word, text: reason_text(word, words(text)))
        patch.setattr(report, "conditions", scrambled_conditions)
        patch.setattr(events, "event_body", scrambled_body)
        logging.setLogRecordFactory(scrambled_record)
        try:
            yield
        finally:
            logging.setLogRecordFactory(record)
