"""One error in an input: path, value, rule and remedy.

Used for pods and BindRequests at admission and for Bowline's own configuration. Pure data; callers format lists of
errors.
"""

import reprlib
from dataclasses import dataclass, replace
from typing import Any

from bowline.api.rule import Rule, Severity

# Longer values are cut in messages: an annotation may hold 256 KiB.
MAX_VALUE = 64
# A path may contain user-defined keys of any length.
MAX_PATH = 256
_LAST_OF_PLANE_0 = 0xFFFF
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error, or a warning, at a field path.

    ``message`` states what must hold and the remedy, without repeating path and value: ``str(error)`` joins the three
    into a complete sentence. ``is_downgraded``: a warning although its rule denies, in a review that must not deny.
    Raises TypeError if ``rule`` is no Rule.
    """

    rule: Rule
    path: str
    value: Any
    message: str
    is_downgraded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):
            raise TypeError(f"the rule of a FieldError must be a Rule, not {self.rule!r}")
        if len(self.path) > MAX_PATH or not self.path.isprintable():
            object.__setattr__(self, "path", printable(_cut(self.path, MAX_PATH)))

    @property
    def is_warning(self) -> bool:
        """Whether it does not deny."""
        return self.is_downgraded or self.rule.severity is Severity.WARNS

    def __str__(self) -> str:
        return f"{self.path}: {format_value(self.value)}: {self.message}" if self.path else self.message

    def under(self, prefix: str) -> "FieldError":
        """Return the same error with its path moved below ``prefix``, for example of a pod template."""
        return replace(self, path=join_path(prefix, self.path)) if prefix else self


def format_value(value: Any) -> str:
    """Return the value formatted for a message: JSON-like, one line, at most MAX_VALUE characters."""
    if isinstance(value, str):
        return f'"{printable(_cut(value, MAX_VALUE).translate(_ESCAPES))}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    # reprlib bounds depth and length: the value may be a megabyte.
    text = reprlib.repr(value) if isinstance(value, dict | list) else str(value)
    return _cut(text, MAX_VALUE)


def printable(text: str) -> str:
    """Return the text with escapes for characters that a terminal interprets instead of displaying: control
    characters except tabs, bidirectional controls, and lone surrogates. API servers drop a warning with a control
    character.
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\t" else escape(c) for c in text])


def escape(character: str) -> str:
    """Return a character's JSON escape."""
    code = ord(character)
    if code <= _LAST_OF_PLANE_0:
        return f"\\u{code:04x}"
    high, low = divmod(code - _LAST_OF_PLANE_0 - 1, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def join_path(prefix: str, path: str) -> str:
    """Join two field paths: ``spec`` + ``x`` is ``spec.x``, ``spec`` + ``[0]`` is ``spec[0]``."""
    if not prefix or not path:
        return prefix or path
    return f"{prefix}{path}" if path.startswith("[") else f"{prefix}.{path}"


def annotation_path(key: str) -> str:
    """Return the field path of an annotation."""
    return f"metadata.annotations[{key}]"
