"""The picture of Bowline beside other binders, from the tables of docs/figures.md.

    python -m tests.benchmarks.peers          # draws docs/plots/peers.svg

Nothing is measured or typed here: each bar is a row of a table, with its date and its noise. One file serves light
and dark pages. A test compares it with what the command draws.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
FIGURES, PICTURE = ROOT / "docs" / "figures.md", ROOT / "docs" / "plots" / "peers.svg"

_ROW = re.compile(
    r"^\| (?P<name>[^|]+) \| (?P<median>[\d.]+) \| (?P<unit>[^|]*?) ?\| (?P<noise>[^|]+) \|", re.MULTILINE
)
_DATE = re.compile(r"\((\d{4}-\d{2}-\d{2}),")
_WIDTH, _LEFT, _BAR, _ROW_PX, _PANEL_PX, _TOP = 720, 190, 300, 19, 66, 54
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.other { fill: #b9c4cc } .ours { fill: #1f5f8b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .other { fill: #57606a } .ours { fill: #58a6ff }
}
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of a table, and the date of its run."""

    median: float
    unit: str
    noise: str
    date: str

    @property
    def text(self) -> str:
        """The value with its unit and its noise, as the picture shows it."""
        number = f"{self.median:.0f}" if self.median >= 100 or self.median == 0 else f"{self.median:.1f}"
        noise = self.noise if "run" in self.noise else f"noise {self.noise}"
        return f"{number} {self.unit}".strip() + f"  ({noise})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared: the title, and the names of both figures. ``other`` begins with the peer's name."""

    title: str
    other: str
    ours: str


COMPARISONS = (
    Comparison(
        "drain of 2,000 requests, more is better",
        "KAI-Scheduler's binder: drain of 2000",
        "Bowline: drain of 2000",
    ),
    Comparison(
        "request to bound pod at 100 a second, median, less is better",
        "KAI-Scheduler's binder: at 100/s p50",
        "Bowline: at 100/s p50",
    ),
    Comparison(
        "valid requests reported as Failed at 100 a second, less is better",
        "KAI-Scheduler's binder: at 100/s reported as Failed",
        "Bowline: at 100/s reported as Failed",
    ),
    Comparison("reviews that mutate, on one core, more is better", "KAI-Scheduler: mutate", "Bowline: mutate"),
    Comparison(
        "400 pods with a local volume each, more is better",
        "kube-scheduler: 400 pods with a local volume each",
        "Bowline: 400 pods with a local volume each",
    ),
    Comparison(
        "400 pods with a device claim each, more is better",
        "kube-scheduler: 400 pods with a resource claim each",
        "Bowline: 400 pods with a resource claim each",
    ),
)


def main() -> int:
    """Draw the picture."""
    PICTURE.write_text(drawn(figures_of(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
    return 0


def figures_of(page: str) -> dict[str, Figure]:
    """Return the dated rows of a page's tables by name; the date is the last one that the section states before."""
    figures = {}
    for section in page.split("\n## "):
        for row in _ROW.finditer(section):
            dates = [date[1] for date in _DATE.finditer(section, 0, row.start())]
            if dates:
                figures[row["name"]] = Figure(float(row["median"]), row["unit"], row["noise"], dates[-1])
    return figures


def drawn(figures: Mapping[str, Figure]) -> str:
    """Return the picture. Raises KeyError for a comparison without its figures."""
    dates = sorted({figures[name].date for each in COMPARISONS for name in (each.other, each.ours)})
    note = f"{' and '.join(dates)}, one machine of two cores that both share; medians; noise: (max - min) / median"
    height = _TOP + _PANEL_PX * len(COMPARISONS)
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<style>{_STYLE}</style>",
        _text(0, 16, "Bowline beside other binders", "title"),
        _text(0, 34, note, "small"),
    ]
    for number, comparison in enumerate(COMPARISONS):
        lines += _panel(comparison, figures, _TOP + 12 + _PANEL_PX * number)
    return "\n".join([*lines, "</svg>", ""])


def _panel(comparison: Comparison, figures: Mapping[str, Figure], top: int) -> Iterator[str]:
    pair = [figures[comparison.other], figures[comparison.ours]]
    limit = max(figure.median for figure in pair)
    yield _text(0, top, comparison.title, "title")
    for row, (figure, name, kind) in enumerate(
        zip(pair, (comparison.other.partition(":")[0], "Bowline"), ("other", "ours"), strict=True)
    ):
        line = top + 6 + _ROW_PX * row
        width = max(1.0, _BAR * figure.median / limit)
        yield _text(_LEFT - 8, line + 12, name, "name", "end")
        yield f'<rect class="{kind}" x="{_LEFT}" y="{line}" width="{width:.1f}" height="{_ROW_PX - 5}" rx="2"/>'
        yield _text(_LEFT + width + 6, line + 12, figure.text, "small")


def _text(left: float, base: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{left:g}" y="{base:g}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
