"""What commands write to a user's terminal: text of a cluster or a file."""

import re
import sys

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


def report_error(text: str) -> None:
    """Print an error of a command."""
    print(printable(text), file=sys.stderr)
