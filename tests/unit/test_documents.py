"""The documents: fenced blocks, links, paths, decisions and listings of code."""

import ast
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import yaml

from bowline.api.rule import page_of
from bowline.conformance.case import SENTENCES
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from bowline.framework.interface.binding_plugin import BindingPlugin, Budgets
from bowline.framework.interface.metrics import PluginMetrics
from bowline.framework.interface.plugin import AdmissionPlugin, Plugin
from bowline.kube.object_client import ObjectClient
from bowline_cli.facts import Section
from bowline_cli.rule import admission_rules
from tests import hostile
from tests.documents import EXECUTED, NOT_EXECUTED, ROOT, blocks, without_blocks

# The page and the test that executes its commands.
EXECUTORS = {
    "docs/alerts.md": "tests/chart/test_operations_live.py",
    "docs/emergency.md": "tests/chart/test_emergency_live.py",
    "docs/gitops.md": "tests/chart/test_rendered_text_live.py",
    "docs/install.md": "tests/chart/test_operations_live.py",
    "docs/lint.md": "tests/unit/cli/test_lint_page.py",
    "docs/maintain-a-gpu-node.md": "tests/plugins/test_node_maintenance.py",
    "docs/metrics.md": "tests/pair/test_pages_live.py",
    "docs/operations.md": "tests/chart/test_operations_live.py",
    "docs/stuck-pods.md": "tests/pair/test_pages_live.py",
    "docs/tutorial.md": "tests/examples/test_tutorial_live.py",
    "docs/with-kai-scheduler.md": "tests/chart/test_with_kai.py",
}
# Blocks that are no commands.
DATA = ("json", "python", "text", "yaml")
FOLDERS = ("docs", "shared", "examples", "charts")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
# Parts joined by slashes; the name of a test may follow.
REPOSITORY_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)/?(?:::[^`]*)?`")
PLUGINS_PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
GUIDE = ROOT / "docs" / "write-a-scheduler.md"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_block_is_executed_or_marked_and_closed() -> None:
    """An indented block has no info string."""
    for page in PAGES:
        text = page.read_text()
        assert [block for block in blocks(page) if block.info not in (EXECUTED, NOT_EXECUTED, *DATA)] == [], page
        fences = [line for line in text.splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(list(blocks(page))), f"{page}: a fence is open, or has another indentation"
        lines = pairwise(without_blocks(text).splitlines())
        assert [line for before, line in lines if not before and line.startswith("    ")] == [], page


def test_a_test_executes_every_page_with_executed_blocks() -> None:
    executed = {name_of(page) for page in PAGES if any(block.info == EXECUTED for block in blocks(page))}
    assert executed == set(EXECUTORS)
    assert [page for page, test in EXECUTORS.items() if page not in (ROOT / test).read_text()] == []


def test_links_lead_to_files_and_paths_in_backticks_exist() -> None:
    """A path is relative to the root or to tests/, and starts with a folder of one of them."""
    bases = (ROOT, ROOT / "tests")
    folders = {folder.name for base in bases for folder in base.iterdir() if folder.is_dir()} - {"build", "dist"}
    missing = []
    for page in PAGES:
        text = page.read_text()
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        paths = [path for path in REPOSITORY_PATH.findall(text) if path.split("/")[0] in folders]
        missing += [f"{name_of(page)}: {link}" for link in links if not (page.parent / link).exists()]
        missing += [f"{name_of(page)}: {path}" for path in paths if not any((base / path).exists() for base in bases)]
    assert missing == []


def test_every_target_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text()))
    named = [
        (name_of(page), name) for page in PAGES for name in re.findall(r"(?m)(?:`|^)make ([a-z-]+)", page.read_text())
    ]
    assert len(named) > 50
    assert [(page, name) for page, name in named if name not in targets] == []


def anchors(page: str) -> set[str]:
    titles = re.findall(r"(?m)^#+ (.+)$", (ROOT / "docs" / page).read_text())
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_addresses_in_explanations_and_denials_have_their_anchors() -> None:
    """Those of alerts have a test of their own."""
    assert {section.value for section in Section if section} <= anchors("stuck-pods.md")
    assert {page_of(rule, "docs") for rule in admission_rules()} <= {
        f"docs/rules.html#{anchor}" for anchor in anchors("rules.md")
    }


def test_the_index_of_the_documents_lists_every_page() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (docs / "index.md").read_text()))
    assert {path.name for path in docs.glob("*.md")} - {"index.md"} == linked


def test_the_map_is_short_and_the_files_that_answer_its_questions_exist() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    assert len(text.encode()) <= 6 * 1024
    answers = re.findall(r"\? \| `([^`]+)` \|", text)
    assert len(answers) > 15
    assert [answer for answer in answers if not (ROOT / answer).is_file()] == []


def test_every_decision_is_in_the_index_and_cited() -> None:
    """A record that binds no module, test or template is the docstring of one module, or a measurement."""
    folder = ROOT / "docs" / "decisions"
    rows = re.findall(r"^\| \[(\d+)\]\((\S+)\) \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    heads = []
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text().splitlines()[0]
        heads.append((str(int(path.name[:4])), path.name, title.partition(". ")[2]))
    assert rows == heads
    sources = [
        path
        for name in ("webhook", "reconciler", "shared", "cli", "tools", "tests")
        for path in (ROOT / name).rglob("*.py")
    ]
    cited: dict[int, Path] = {}
    templates = (path for kind in ("tpl", "yaml") for path in (ROOT / "charts").rglob(f"*.{kind}"))
    for path in (*sources, *templates, ROOT / "CHANGELOG.md"):
        for numbers in re.findall(r"\b[Dd]ecisions?[\s#]+(\d+(?:(?:, | and )\d+)*)\b", path.read_text()):
            cited |= {int(number): path for number in re.findall(r"\d+", numbers)}
    records = {int(number) for number, *_ in heads}
    assert {number: path for number, path in cited.items() if number not in records} == {}
    assert records - cited.keys() == set()
    # A record is for those who change Bowline: the pages of users state what matters of it.
    users = [page for page in PAGES if folder not in page.parents and page != ROOT / "CHANGELOG.md"]
    number = re.compile(r"decisions/\d|[Dd]ecisions?\s\[?\d")
    assert [name_of(page) for page in users if number.search(page.read_text())] == []


def signatures() -> Iterator[str]:
    """The methods of the plugins' interface, as they are declared."""
    for kind in (Plugin, AdmissionPlugin, BindingPlugin):
        for name, member in vars(kind).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                word = "async def" if inspect.iscoroutinefunction(member) else "def"
                # Without the modules of the types: all are names of the package.
                signature = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(inspect.signature(member)))
                signature = re.sub(r"\b(pod|old|request): Mapping\[str, Any\]", r"\1: Object", signature)
                yield ast.unparse(ast.parse(f"{word} {name}{signature}: ..."))


def call_of(method: FunctionType) -> str:
    """The call of a method, by the names of its parameters; after ``*`` by keyword."""
    parameters = [entry for entry in inspect.signature(method).parameters.values() if entry.name != "self"]
    words = [f"**{entry.name}" if entry.kind is entry.VAR_KEYWORD else entry.name for entry in parameters]
    keywords = [entry.name for entry in parameters if entry.kind is entry.KEYWORD_ONLY]
    if keywords:
        words.insert(words.index(keywords[0]), "*")
    return f"{method.__name__}({', '.join(words)})"


def first_cells(title: str) -> dict[str, list[str]]:
    """The cells of the rows of the table of docs/plugins.md whose first column has that title, by the first cell."""
    table = re.search(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PLUGINS_PAGE, re.MULTILINE)
    assert table is not None
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    return {row[0]: row for row in rows}


def test_the_page_of_plugins_has_every_signature_point_and_budget() -> None:
    section = PLUGINS_PAGE.split("\n## Signatures\n")[1].split("\n## ")[0]
    blocks = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)]
    # For everybody, and for few.
    kinds = [kind for block in blocks for kind in block.body if isinstance(kind, ast.ClassDef)]
    points = [point for kind in kinds for point in kind.body]
    assert sorted(map(ast.unparse, points)) == sorted(signatures())
    assert first_cells("point").keys() == {point.name for point in points if hasattr(point, "name")}
    methods = [member for kind in (ObjectClient, PluginMetrics) for member in vars(kind).values()]
    calls = {call_of(method) for method in methods if isinstance(method, FunctionType) and method.__name__[0] != "_"}
    assert first_cells("method").keys() == calls
    assert {name: float(row[1]) for name, row in first_cells("budget").items()} == asdict(Budgets())


def test_the_page_of_schedulers_has_every_case_and_one_minimal_request() -> None:
    request = yaml.safe_load(next(block.text for block in blocks(GUIDE) if block.info == "yaml"))
    assert request["spec"].keys() == {"podName", "selectedNode"}
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|`]+) \|$", GUIDE.read_text(), re.MULTILINE)
    assert rows == [(case.name, case.promise) for case in SCHEDULER_CASES]


def test_each_rule_of_a_case_has_a_sentence_of_the_page_of_schedulers() -> None:
    page = " ".join(GUIDE.read_text().split())
    assert [sentence for sentence in SENTENCES if sentence not in page] == []
    folder = ROOT / "shared" / "bowline" / "conformance"
    nodes = [
        node
        for path in (folder / "scheduler.py", folder / "scheduler_cases.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    rules = {rule for names_of_sentence in SENTENCES.values() for rule in names_of_sentence}
    assert rules <= {node.value for node in nodes if isinstance(node, ast.Constant)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    checks = [call for call in calls if call.func.attr in ("require", "until", "runs", "decided")]  # type: ignore[attr-defined]
    assert {call.args[0].value for call in checks if isinstance(call.args[0], ast.Constant)} <= rules


@pytest.fixture
def scheduler() -> Iterator[dict[str, Any]]:
    """The names of the example scheduler's module, which sets a limit."""
    limit = sys.getrecursionlimit()
    yield runpy.run_path(str(ROOT / "examples" / "scheduler" / "scheduler.py"))
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("text", [*hostile.MANAGED_FIELDS.values(), *hostile.PARAMETERS.values()])
def test_the_example_scheduler_reads_what_api_servers_store(scheduler: dict[str, Any], text: bytes) -> None:
    assert scheduler["read"](lambda **_: SimpleNamespace(data=b'{"items":[{"a":' + text + b"}]}"))["items"]
