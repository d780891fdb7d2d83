"""Tables of generated pages."""

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; a `|` in a cell is escaped."""
    lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return "\n".join((f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines)) + "\n"


def between(text: str, name: str, content: str) -> str:
    """Return a page with another content between the comments that name a generated part."""
    begin, end = f"<!-- {name}: `make generate` writes this -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
