"""One fault in somebody's input: where, what, which rule, what to do about it.

Used for pods and BindRequests at admission and for Bowline's own configuration. Pure data; how a list of faults is
shown is decided where it is shown.
"""

import reprlib
from dataclasses import dataclass, replace
from typing import Any

# Longer values are cut in messages: an annotation may hold 256 KiB.
MAX_VALUE = 64
# As in JSON, but for tabs. API servers drop a warning with a control character in it, and terminals obey them.
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\t")}
_ESCAPES = _CONTROLS | str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """A fault (or, with ``is_warning``, something odd but allowed) at a field path.

    ``rule`` is ``<plugin>/<rule>``, stable across releases. ``message`` says what must hold and the remedy, without
    repeating path and value: ``str(error)`` puts the three together into a sentence that is complete alone.
    """

    rule: str
    path: str
    value: Any
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.value)}: {self.message}" if self.path else self.message

    def under(self, prefix: str) -> "FieldError":
        """Return the same fault with its path moved below ``prefix`` (of a pod template, say)."""
        return replace(self, path=join_path(prefix, self.path)) if prefix else self


def shown(value: Any) -> str:
    """Return the value as a message shows it: JSON-like, one line, at most MAX_VALUE characters."""
    if isinstance(value, str):
        cut = value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 3] + "..."
        return f'"{cut.translate(_ESCAPES)}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    # reprlib looks neither deep nor far: the value may be a megabyte of somebody's mistake.
    text = reprlib.repr(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def join_path(prefix: str, path: str) -> str:
    """Join two field paths: ``spec`` + ``x`` is ``spec.x``, ``spec`` + ``[0]`` is ``spec[0]``."""
    if not prefix or not path:
        return prefix or path
    return f"{prefix}{path}" if path.startswith("[") else f"{prefix}.{path}"


def annotation_path(key: str) -> str:
    """Return the field path of an annotation, as kubectl users know it."""
    return f"metadata.annotations[{key}]"
