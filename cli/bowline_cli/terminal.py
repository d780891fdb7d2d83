"""What commands write to a user's terminal: text of a cluster or a file, and colours."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

RED, GREEN, YELLOW = "31", "32", "33"
# What CI systems take for a command to themselves: GitHub's at the beginning of a line, older forms of it and of
# others anywhere.
_LINE_COMMAND = re.compile(r"^(\s*):(?=:)")
_COMMAND = re.compile(r"#(?=#\w*\[)")


def printable(line: str) -> str:
    """Return a line without characters that control a terminal, forge another line, or are a command to a CI system:
    names come from the files.
    """
    if not line.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return _COMMAND.sub(r"\\x23", _LINE_COMMAND.sub(r"\1\\x3a", line))


def inert_json(text: str) -> str:
    """Return JSON in which no text is a command to a CI system; it has the same value."""
    return _COMMAND.sub(r"\\u0023", text)


def has_colours(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream shows colours: a terminal, unless the user has switched them off (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def painted(text: str, colour: str) -> str:
    """Return the text in a colour, for a terminal."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def shown(lines: Iterable[tuple[str, str]], *, colours: bool) -> str:
    """Return lines, each with its colour or none, as one text."""
    return "\n".join(painted(printable(line), colour if colours else "") for line, colour in lines)


def report_error(text: str) -> None:
    """Print an error of a command, in red on a terminal."""
    print(painted(printable(text), RED if has_colours(sys.stderr) else ""), file=sys.stderr)
