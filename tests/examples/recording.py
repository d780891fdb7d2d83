"""The recording of `make demo` in README.md, an animated SVG: ``python -m tests.examples.recording [OUT]`` draws it.

The demo runs, and its lines become a terminal that scrolls, with a pause after each command. Colours follow the
reader's light or dark mode; a reader who prefers no motion sees the last lines. A test compares its text with a new
run, without numbers and times. Nothing in it is edited by hand.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.documents import ROOT, run

PICTURE = ROOT / "docs" / "diagrams" / "demo.svg"
COMMAND = f"{sys.executable} -u -m bowline.localcluster demo"
COLUMNS, ROWS = 70, 26
LINE_PX, CHARACTER_PX, MARGIN_PX = 17, 7.25, 14
# How long a line stands alone, in seconds: a line of output, one before the next command, the end.
LINE_S, READING_S, END_S = 0.12, 1.3, 6.0
_SVG = "{http://www.w3.org/2000/svg}"
_STYLE = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; fill: #1f2328 }
rect { fill: #f6f8fa; stroke: #d0d7de }
.title { font-weight: 600; fill: #0550ae } .command { fill: #116329 } .bad { fill: #a40e26 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect { fill: #0d1117; stroke: #30363d }
  .title { fill: #79c0ff } .command { fill: #7ee787 } .bad { fill: #ffa198 }
}
"""


def wrapped(output: str) -> list[str]:
    """Return the lines of the demo's scenes as a terminal of COLUMNS, as wide as a phone can show, has them.

    The start of the cluster and the demo's end are left out: their figures are those of the machine.
    """
    scenes = output[output.index("\n== ") + 1 : output.rindex("\nThat was")].rstrip()
    return [
        part
        for line in re.sub("\n\n+", "\n\n", scenes).splitlines()
        for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False) or [""]
    ]


def comparable(lines: Sequence[str]) -> list[str]:
    """Return the words, without what differs between two runs: numbers, times, line breaks, the order of events."""
    return sorted(re.sub(r"\d[\dT:.hmsZ-]*", "N", " ".join(lines)).split())


def lines_of(picture: str) -> list[str]:
    """Return the lines of text in a picture."""
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{_SVG}text")]  # noqa: S314 - ours


def svg(lines: Sequence[str]) -> str:
    """Draw the lines."""
    width, height = round(COLUMNS * CHARACTER_PX + 2 * MARGIN_PX), ROWS * LINE_PX + 2 * MARGIN_PX
    moments, seconds = _moments(lines)
    last = max(len(lines) - ROWS, 0) * LINE_PX
    text = "\n".join(
        f'<text x="{MARGIN_PX}" y="{MARGIN_PX + number * LINE_PX + 12}"{_class(line)}>{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f"<title>make demo: a denied pod, a bound pod, and a stuck pod that is explained</title>\n"
        f"<style>{_STYLE}"
        f"#screen {{ animation: scroll {seconds:.1f}s step-end infinite }}\n"
        f"@keyframes scroll {{\n{''.join(_keyframes(moments, seconds))}}}\n"
        "@media (prefers-reduced-motion: reduce) "
        f"{{ #screen {{ animation: none; transform: translateY(-{last}px) }} }}\n"
        f"</style>\n"
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        f'<clipPath id="window"><rect x="0" y="{MARGIN_PX}" width="{width}" height="{ROWS * LINE_PX}"/></clipPath>\n'
        f'<g clip-path="url(#window)"><g id="screen">\n{text}\n</g></g>\n</svg>\n'
    )


def _moments(lines: Sequence[str]) -> tuple[list[float], float]:
    """Return when each line is the last one in the window, and when the recording ends, in seconds.

    The window is full from the start: the picture says something also where it does not move.
    """
    moments, now = [], 0.0
    for number, line in enumerate(lines):
        moments.append(now)
        if number + 1 < ROWS:
            continue
        is_last_of_output = number + 1 < len(lines) and lines[number + 1].startswith(("$ ", "=="))
        now += READING_S if number + 1 == ROWS or is_last_of_output or line.startswith("==") else LINE_S
    return moments, now + END_S


def _keyframes(moments: Sequence[float], seconds: float) -> Iterator[str]:
    """Yield one keyframe for each line that scrolls the window."""
    for number, moment in list(enumerate(moments))[ROWS - 1 :]:
        yield f"{100 * moment / seconds:.3f}% {{ transform: translateY({(ROWS - 1 - number) * LINE_PX}px) }}\n"


def _class(line: str) -> str:
    if line.startswith("=="):
        return ' class="title"'
    if line.startswith("$ "):
        return ' class="command"'
    return ' class="bad"' if re.search(r"is invalid:|Failed|^\* ", line) else ""


def main() -> int:
    """Run the demo and draw it."""
    parser = argparse.ArgumentParser(prog="python -m tests.examples.recording", description="Draws the demo.")
    parser.add_argument("out", nargs="?", type=Path, default=PICTURE, help="(%(default)s)")
    options = parser.parse_args()
    options.out.write_text(svg(wrapped(run(COMMAND, kubeconfig=Path("unused")))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
