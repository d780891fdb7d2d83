"""What ``bowline lint`` reports itself, beside the webhook's errors and warnings. Data."""

from dataclasses import dataclass
from typing import Final

from bowline.api.field_error import format_value
from bowline.api.rule import Rule, Severity

UNREADABLE: Final = Rule("lint/unreadable", "a file cannot be read, or is no manifest")
DUPLICATE_KEY: Final = Rule(
    "lint/duplicate-key",
    "a key is given twice in one mapping: kubectl applies the last value without a message",
    Severity.WARNS,
)
SCHEDULER: Final = Rule(
    "lint/scheduler",
    "a pod that requests a GPU has a scheduler that is not in the configuration (only with `--require-scheduler`)",
)
RULES: Final = (UNREADABLE, DUPLICATE_KEY, SCHEDULER)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a warning, and the file and line of the field that it is about."""

    rule: Rule
    file: str
    line: int
    message: str
    is_warning: bool = False


def duplicate_text(line: int, key: str, *, is_rendered: bool = False) -> str:
    """Return the message about a key that is given twice in the same mapping."""
    of_what = " of what is rendered" if is_rendered else ""
    return f"line {line}{of_what}: key {format_value(key)} is given twice: kubectl applies the last value; remove one"
