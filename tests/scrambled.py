"""A mode of the tests in which every text for people is random words: ``pytest --scrambled-texts``.

Statuses, conditions, events, errors of fields, denials, warnings and log lines are replaced where they are rendered,
equal texts by equal words, also in the pair that a test starts. What still passes reads fields, not sentences. A
program that parses text fails, and so would a test about wording, which has the marker ``wording`` and is left out.
"""

import logging
import os
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bowline.api.field_error import FieldError
from bowline.framework.plugin_status import Status
from bowline.kube import events
from bowline.localcluster.process import Launch
from bowline_reconciler.binding import pod_conditions
from bowline_reconciler.decide import report
from bowline_webhook import review

# Python imports what is in the first when it starts, and that imports from the second.
_PYTHON_PATH = f"{Path(__file__).parent / 'scrambled_processes'}{os.pathsep}{Path(__file__).parents[1]}"
_LETTERS = string.ascii_lowercase
_WORDS = re.compile("[a-z]{7}( [a-z]{7}){2}")


def words(text: str) -> str:
    """Return three random words that follow from the text; an empty text and such words stay what they are."""
    if _WORDS.fullmatch(text):
        return text
    chance = random.Random(text)  # noqa: S311 - not for secrets
    return " ".join("".join(chance.choices(_LETTERS, k=7)) for _ in range(3)) if text else text


def scrambled_launch(name: str, argv: Sequence[str], log: Path, folder: Path, env: Mapping[str, str]) -> Launch:
    """Return how to start a process whose texts are random words."""
    return Launch(name, tuple(argv), log, folder, {**env, "PYTHONPATH": _PYTHON_PATH})


@contextmanager
def scrambled_texts() -> Iterator[None]:
    """Replace every text until the block ends."""
    message: Any = Status.message
    reason_text, conditions, body = report.reason_text, report.conditions, events.event_body
    stored_forms, has, denial = pod_conditions._stored_forms, pod_conditions._has, review._denial
    record = logging.getLogRecordFactory()

    def scrambled_record(*args: Any, **options: Any) -> logging.LogRecord:
        made = record(*args, **options)
        if str(made.name).startswith("bowline"):
            made.msg, made.args = words(made.getMessage()), ()
        return made

    def scrambled_conditions(request: Any, updates: Any, now: Any) -> Any:
        return conditions(request, {k: (status, why, words(text)) for k, (status, why, text) in updates.items()}, now)

    def scrambled_body(*args: Any, **options: Any) -> Any:
        made = body(*args, **options)
        return {**made, "note": words(made["note"])}

    def scrambled_condition(condition: Any) -> Any:
        return replace(condition, message=words(condition.message))

    def scrambled_denial(*args: Any) -> Any:
        made = denial(*args)
        causes = [{**cause, "message": words(cause["message"])} for cause in made["details"]["causes"]]
        return {**made, "message": words(made["message"]), "details": {**made["details"], "causes": causes}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Status, "message", property(lambda status: words(message.fget(status))))
        patch.setattr(FieldError, "__str__", lambda error: words(error.path + error.message))
        patch.setattr(report, "reason_text", lambda word, text: reason_text(word, words(text)))
        patch.setattr(report, "conditions", scrambled_conditions)
        patch.setattr(
            pod_conditions,
            "_stored_forms",
            lambda pod, condition, now: stored_forms(pod, scrambled_condition(condition), now),
        )
        patch.setattr(pod_conditions, "_has", lambda pod, condition: has(pod, scrambled_condition(condition)))
        patch.setattr(review, "_denial", scrambled_denial)
        patch.setattr(review, "_warning", lambda error, _: words(error.path + error.message))
        patch.setattr(events, "event_body", scrambled_body)
        logging.setLogRecordFactory(scrambled_record)
        try:
            yield
        finally:
            logging.setLogRecordFactory(record)
