"""One fault in somebody's input: where, what, which rule, what to do about it.

Used for pods and BindRequests at admission and for Bowline's own configuration. Pure data; how a list of faults is
shown is decided where it is shown.
"""

import reprlib
from dataclasses import dataclass, replace
from typing import Any

# Longer values are cut in messages: an annotation may hold 256 KiB.
MAX_VALUE = 64
# A path may hold keys that a user has chosen, each as long as the object may be.
MAX_PATH = 256
_LAST_OF_PLANE_0 = 0xFFFF
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


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

    def __post_init__(self) -> None:
        if len(self.path) > MAX_PATH or not self.path.isprintable():
            object.__setattr__(self, "path", printable(_cut(self.path, MAX_PATH)))

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.value)}: {self.message}" if self.path else self.message

    def under(self, prefix: str) -> "FieldError":
        """Return the same fault with its path moved below ``prefix`` (of a pod template, say)."""
        return replace(self, path=join_path(prefix, self.path)) if prefix else self


def shown(value: Any) -> str:
    """Return the value as a message shows it: JSON-like, one line, at most MAX_VALUE characters."""
    if isinstance(value, str):
        return f'"{printable(_cut(value, MAX_VALUE).translate(_ESCAPES))}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    # reprlib looks neither deep nor far: the value may be a megabyte of somebody's mistake.
    text = reprlib.repr(value) if isinstance(value, dict | list) else str(value)
    return _cut(text, MAX_VALUE)


def printable(text: str) -> str:
    """Return the text with escapes for what a terminal obeys instead of showing it: control characters but for tabs,
    characters that turn the direction of writing around, and halves of characters. API servers drop a warning with a
    control character in it.
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c == "\t" else escaped(c) for c in text])


def escaped(character: str) -> str:
    """Return a character as JSON escapes it."""
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
    """Return the field path of an annotation, as kubectl users know it."""
    return f"metadata.annotations[{key}]"
