"""Tables of generated pages."""

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; a `|` in a cell is escaped."""
    lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return "\n".join((f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines)) + "\n"
