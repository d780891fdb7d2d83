"""The picture of docs/architecture.md: which part imports which, by floors. ``python -m tools.generate.imports``.

Read from the imports of the modules; nothing of the product is run. A part imports parts of lower floors only. The
contracts in pyproject.toml enforce that, this module only draws it.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import grimp

SHARED: Final = "bowline"
# Drawn as one among the parts of the shared one, whose kits import processes; then each by its parts.
PROCESSES: Final = ("bowline_webhook", "bowline_reconciler", "bowline_cli")
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
_BEGIN, _END = "<!-- imports: `make generate` writes this -->\n", "<!-- end of imports -->\n"


class CircleError(ValueError):
    """Parts that import each other in a circle."""


def floors(graph: grimp.ImportGraph, parts: Sequence[str]) -> list[list[str]]:
    """Sort parts into floors, the highest first: each imports parts of lower floors only.

    Raises:
        CircleError: Parts import each other in a circle, so that no order exists.
    """
    imports = {part: {other for other in parts if _imports(graph, part, other)} for part in parts}
    rows: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(parts):
        row = [part for part in parts if part not in placed and imports[part] <= placed]
        if not row:
            raise CircleError(f"import each other in a circle: {sorted(set(parts) - placed)}")
        rows.append(row)
        placed |= set(row)
    return rows[::-1]


def _imports(graph: grimp.ImportGraph, part: str, other: str) -> bool:
    return part != other and graph.direct_import_exists(importer=part, imported=other, as_packages=True)


def drawing() -> Iterator[str]:
    """Yield the lines of the picture.

    Raises:
        CircleError: The parts have no order.
    """
    graph = grimp.build_graph(SHARED, *PROCESSES)
    title = f"the parts of {SHARED} and all other packages, the highest floor first"
    parts_by_title = {title: (*_parts(graph, SHARED), *PROCESSES)}
    parts_by_title |= {package: _parts(graph, package) for package in PROCESSES}
    arrows = 0
    for title, parts in parts_by_title.items():
        arrows += sum(_imports(graph, part, other) for part in parts for other in parts)
        yield f"{title}:"
        yield from _floor_lines(floors(graph, parts))
        yield ""
    yield f"{arrows} arrows between parts, 0 upward, 0 circles"


def _parts(graph: grimp.ImportGraph, package: str) -> tuple[str, ...]:
    return tuple(sorted(part for part in graph.find_children(package) if not part.endswith(".__main__")))


def _floor_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield "  " + "   ".join(part.rpartition(".")[2] for part in row)


def as_markdown() -> str:
    """Return docs/architecture.md with the current picture."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    text = "\n".join(drawing())
    return f"{before}{_BEGIN}\n```text\n{text}\n```\n\n{_END}{after}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(drawing()) + "\n")
