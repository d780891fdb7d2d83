"""What ``bowline lint`` reports: findings, and the objects and files that they are about. Data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bowline.api.rule import Rule

UNREADABLE: Final = Rule("lint/unreadable", "a file cannot be read, or is no manifest")
RULES: Final = (UNREADABLE,)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a warning. ``file`` and ``line`` are of the document that contains the object."""

    rule: Rule
    file: str
    line: int
    message: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class FindingSubject:
    """An object that was read, or a file that could not be, and its findings."""

    name: str
    verdict: str
    is_reviewed: bool
    findings: Sequence[Finding] = ()
