"""The fenced blocks of the documents, the commands in them, and the parts that results are written to.

The convention, which `tests/unit/test_documents.py` enforces: a test executes every block `console`. In a block with
lines that begin with `$ `, those are the commands, and the lines that follow are the output; `...` stands for any
text within a line, and alone in a line for any lines. Otherwise each line is a command. Commands that no test
executes are in blocks `sh notest`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXECUTED, NOT_EXECUTED = "console", "sh notest"
# A fence may be indented, in a list.
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its info string and its text, without the indentation."""

    info: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and the output that the document states; None if it states none."""

    text: str
    output: str | None = None

    def matches(self, actual: str) -> bool:
        """Return whether the actual output is what the document states."""
        if self.output is None:
            return True
        lines = (r"(?:[^\n]*\n)*" if line == "..." else _line_pattern(line) for line in self.output.splitlines())
        return re.fullmatch("".join(lines), actual) is not None


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for match in _BLOCK.finditer(path.read_text(encoding="utf-8")):
        indent = len(match["indent"])
        yield Block(match["info"], "".join(f"{line[indent:]}\n" for line in match["text"].splitlines()))


def without_blocks(text: str) -> str:
    """Return the text of a document without its fenced blocks."""
    return _BLOCK.sub("", text)


def commands(page: str) -> list[Command]:
    """Return the commands that a test executes, in their order; `page` is a path in the repository."""
    page_commands: list[Command] = []
    for block in blocks(ROOT / page):
        if block.info == EXECUTED:
            page_commands += commands_of(block.text)
    return page_commands


def run(text: str, kubeconfig: Path, *tools: Path, folder: Path = ROOT) -> str:
    """Run a command of a page as a user would, in the folder; the folders `tools` come first in PATH.

    Returns its output. Raises AssertionError with the output if the command fails.
    """
    path = os.pathsep.join([*map(str, tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}
    completion = subprocess.run(  # noqa: S602 - the page's own command
        text,
        shell=True,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert completion.returncode == 0, f"{text}\n{completion.stdout}"
    return completion.stdout


def commands_of(text: str) -> list[Command]:
    """Return the commands of one block. A line that ends with a backslash continues in the next one."""
    if not any(line.startswith(_PROMPT) for line in text.splitlines()):
        return [Command(line) for line in text.replace("\\\n", " ").splitlines() if line]
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [Command(*_command_and_output(part)) for part in parts]


def _command_and_output(part: str) -> tuple[str, str]:
    match = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n", part)
    assert match, f"a command without an end: {part}"
    return match[1], part[match.end() :]


def _line_pattern(line: str) -> str:
    """Columns of kubectl have widths that depend on the rows: any number of spaces matches a run of spaces."""
    literals = (re.sub(r"(\\ )+", " +", re.escape(literal)) for literal in line.split("..."))
    return ".*".join(literals) + " *\n"


def with_part(page: str, begin: str, end: str, text: str) -> str:
    """Return the page with this text between its two comments. Raises ValueError for a page without them."""
    before, begin_comment, rest = page.partition(begin)
    _, end_comment, after = rest.partition(end)
    if not (begin_comment and end_comment):
        raise ValueError(f"the page lacks {begin.strip()} or {end.strip()}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def present_commit() -> str:
    """Return the commit, marked if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
