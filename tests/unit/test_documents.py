"""Every fenced block of the documents is executed by a test, or marked as not executed. Decision 183."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.documents import EXECUTED, NOT_EXECUTED, ROOT, Command, blocks, commands_of, without_blocks

# The page and the test that executes its commands.
EXECUTORS = {
    "docs/emergency.md": "tests/chart/test_emergency_live.py",
    "docs/gitops.md": "tests/chart/test_rendered_text_live.py",
    "docs/install.md": "tests/chart/test_operations_live.py",
    "docs/lint.md": "tests/unit/cli/test_lint_page.py",
    "docs/metrics.md": "tests/pair/test_pages_live.py",
    "docs/operations.md": "tests/chart/test_operations_live.py",
    "docs/recovery.md": "tests/chart/test_recovery_live.py",
    "docs/stuck-pods.md": "tests/pair/test_pages_live.py",
    "docs/tutorial.md": "tests/examples/test_tutorial_live.py",
    "docs/with-kai-scheduler.md": "tests/chart/test_with_kai.py",
}
# Blocks that are no commands.
DATA = ("json", "python", "text", "yaml")
FOLDERS = ("docs", "shared", "examples", "charts")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_known_info_string(page: Path) -> None:
    assert [block for block in blocks(page) if block.info not in (EXECUTED, NOT_EXECUTED, *DATA)] == []
    fences = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
    assert len(fences) == 2 * len(list(blocks(page))), "a fence that is not closed, or has another indentation"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "decisions" not in page.parts and page.name not in ("AGENTS.md", "CHANGELOG.md")],
    ids=name_of,
)
def test_a_decision_is_linked_or_not_named(page: Path) -> None:
    assert re.findall(r"(?<!\[)\bdecisions? \d+", page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_in_fenced_blocks(page: Path) -> None:
    """An indented block has no info string."""
    lines = without_blocks(page.read_text()).splitlines()
    assert [line for before, line in pairwise(lines) if not before and line.startswith("    ")] == []


def test_a_test_executes_every_page_with_executed_blocks() -> None:
    executed = {name_of(page) for page in PAGES if any(block.info == EXECUTED for block in blocks(page))}
    assert executed == set(EXECUTORS)
    assert [page for page, test in EXECUTORS.items() if page not in (ROOT / test).read_text()] == []


def test_a_block_without_prompts_has_a_command_in_each_line() -> None:
    assert commands_of("kubectl get pods\n\nhelm list \\\n  --all\n") == [
        Command("kubectl get pods"),
        Command("helm list    --all"),
    ]


def test_a_block_with_prompts_states_the_output() -> None:
    assert commands_of("$ a \\\n  b\none\n\ntwo\n$ c\n") == [Command("a \\\n  b", "one\n\ntwo\n"), Command("c", "")]


@pytest.mark.parametrize(
    ("stated_output", "actual", "expectation"),
    [
        pytest.param("bound\n", "bound\n", True, id="equal"),
        pytest.param("bound\n", "bound\nmore\n", False, id="a-line-more"),
        pytest.param("in ... s\n", "in 3.4 s\n", True, id="any-text"),
        pytest.param("in ... s\n", "in 3\n4 s\n", False, id="not-across-lines"),
        pytest.param("a\n...\nb\n", "a\nx\ny\nb\n", True, id="any-lines"),
        pytest.param("NAME   AGE\n", "NAME AGE   \n", True, id="columns"),
        pytest.param("a.c\n", "abc\n", False, id="no-pattern"),
        pytest.param("", "text\n", False, id="no-output"),
    ],
)
def test_the_stated_output_is_compared(stated_output: str, actual: str, expectation: bool) -> None:
    assert Command("x", stated_output).matches(actual) is expectation
