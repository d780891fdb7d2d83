"""Text of a cluster or a file on the user's terminal."""


def printable(line: str) -> str:
    """Return a line without characters that control a terminal or forge another line: names come from the files."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
