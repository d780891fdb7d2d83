"""Rules of the code base that no linter checks: sizes, docstrings, the words of docstrings and comments, the maps."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("webhook", "reconciler", "shared", "cli", "localcluster")
MAX_MODULE = 500  # review a module at 300 lines
MAX_FUNCTION = 60
MAX_TEST_NAME = 80
# The shape of reconciler/: imports between its modules and packages, and the longest chain of them. Only decreases.
MAX_IMPORTS = 35
MAX_LEVELS = 9
MESSAGE = 20  # a longer string literal is a message, not a name
QUOTING = ("glossary.md",)
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
# Words that names of tests do not contain: a name has a component as its subject, and a standard verb.
DIALECT = re.compile(
    r"_(?:somebody|nobody|whoever|whom|anybody|everybody|looks?|looked|tells?|told|says?|said|goes|gone|went"
    r"|comes?|came|stands?|stood|mends?|anew)(?=_|$)"
)
# How often words of a private dialect may occur in 10,000 words of docstrings, comments, messages and documents. The
# limits only decrease. The glossary quotes such words.
LIMITS = {
    r"somebody|nobody|whoever|whom|anybody|everybody": 0.0,
    r"looks?|looked": 1.0,
    r"tells?|told|says?|said": 0.0,
    r"goes|gone|comes": 1.0,
    r"stands?": 0.0,
    r"anew|for ever|at once|mends?|mended": 0.0,
}


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (p for p in sorted((ROOT / package).rglob("*.py")) if "tests" not in p.relative_to(ROOT).parts)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module of the product, parsed once."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in modules()}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_module_has_a_docstring_that_states_what_it_models(trees: dict[str, ast.Module]) -> None:
    assert [path for path, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_modules_and_functions_have_bounded_sizes(trees: dict[str, ast.Module]) -> None:
    long = {path: lines for path in trees if (lines := len((ROOT / path).read_text().splitlines())) > MAX_MODULE}
    for path, tree in trees.items():
        for node in functions(tree):
            if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION:
                long[f"{path}: {node.name}"] = lines
    assert long == {}


@pytest.mark.parametrize(
    "folders", [PACKAGES, ("tests", "benchmarks", "charts", "examples")], ids=["product", "others"]
)
def test_docstrings_and_comments_use_the_terms_of_the_glossary(folders: tuple[str, ...]) -> None:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    assert above_limits({path: prose_of(ast.parse(source), source) for path, source in sources.items()}) == {}


def test_messages_use_the_terms_of_the_glossary(trees: dict[str, ast.Module]) -> None:
    assert above_limits({path: "\n".join(messages_of(tree)) for path, tree in trees.items()}) == {}


def test_documents_and_the_chart_use_the_terms_of_the_glossary() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in documents() if path.name not in QUOTING}
    chart = ROOT / "charts" / "bowline"
    for path in [*chart.glob("*.yaml"), *(chart / "templates").iterdir()]:
        text = path.read_text()
        comments = re.findall(r"/\*.*?\*/|#[^\n]*", text, re.DOTALL)
        texts[str(path.relative_to(ROOT))] = text if path.suffix == ".txt" else "\n".join(comments)
    settings = ROOT / "pyproject.toml", ROOT / "Makefile"
    texts |= {path.name: "\n".join(re.findall("#.*", path.read_text())) for path in settings}
    assert above_limits(texts) == {}


def above_limits(texts: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """Return the words above their limits: the files and the occurrences."""
    total = sum(len(re.findall(r"[A-Za-z']+", text)) for text in texts.values())
    above = {}
    for words, limit in LIMITS.items():
        found = {path: re.findall(rf"\b(?:{words})\b", text, re.IGNORECASE) for path, text in texts.items()}
        if sum(map(len, found.values())) * 10_000 / total > limit:
            above[words] = {path: hits for path, hits in found.items() if hits}
    return above


def test_names_of_tests_are_short_and_in_plain_english() -> None:
    tests = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "shared").rglob("test_*.py")]
    named = [(path, match[1]) for path in tests for match in TEST.finditer(path.read_text())]
    assert len(named) > 1000
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in named
        if len(name) > MAX_TEST_NAME or re.search(r"faults?_\d", name) or DIALECT.search(name)
    ]
    assert wrong == []


def test_every_decision_is_in_the_index_and_has_a_status() -> None:
    folder = ROOT / "docs" / "decisions"
    rows = re.findall(r"^\| \[(\d+)\]\((\S+)\) \| (.+) \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    heads = []
    for path in sorted(folder.glob("[0-9]*.md")):
        title, _, status = path.read_text().splitlines()[:3]
        heads.append((str(int(path.name[:4])), path.name, title.partition(". ")[2], status[8:].removesuffix(".")))
    assert rows == heads


def test_every_decision_is_cited_and_every_citation_exists() -> None:
    """A record that binds no module, test or template is the docstring of one module, or a measurement."""
    records = {int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    sources = [*modules(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "charts").rglob("*.tpl"), ROOT / "CHANGELOG.md"]
    cited: set[int] = set()
    for path in sources:
        for numbers in re.findall(r"\b[Dd]ecisions? (\d+(?:(?:, | and )\d+)*)\b", path.read_text()):
            cited |= {int(number) for number in re.findall(r"\d+", numbers)}
            assert cited <= records, f"{path.relative_to(ROOT)} cites a decision that does not exist"
    assert records <= cited, f"not cited: {records - cited}"


def test_links_between_documents_lead_to_files() -> None:
    broken = []
    for path in documents():
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text()):
            if not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def documents() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in ("docs", "shared", "examples", "charts"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def test_the_map_lists_every_module(trees: dict[str, ast.Module]) -> None:
    """A new module gets a row in AGENTS.md below its folder's heading; a removed or moved one loses its row."""
    listed, folder = set(), ""
    for line in (ROOT / "AGENTS.md").read_text().splitlines():
        if heading := re.match(r"### `(.+)/`$", line):
            folder = heading[1]
        elif row := re.match(r"\| `([^`/]+\.py)` \| \S", line):
            listed.add(f"{folder}/{row[1]}")
    existing = {path for path, tree in trees.items() if not is_only_a_docstring(path, tree)}
    assert not existing - listed, "modules without a row"
    assert not listed - existing, "rows of modules that do not exist"


def test_the_files_that_answer_questions_exist() -> None:
    answers = re.findall(r"\? \| `([^`]+)` \|", (ROOT / "AGENTS.md").read_text())
    assert len(answers) > 15
    assert [answer for answer in answers if not (ROOT / answer).is_file()] == []


def is_only_a_docstring(path: str, tree: ast.Module) -> bool:
    """Return whether a module only describes its folder, or only starts it."""
    return path.endswith("/__main__.py") or (path.endswith("/__init__.py") and len(tree.body) == 1)


def messages_of(tree: ast.Module) -> list[str]:
    """Return the string literals of a module that are texts, docstrings of attributes included."""
    literals = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [text for text in literals if isinstance(text, str) and len(text) > MESSAGE]


def test_the_reconcilers_modules_have_few_imports_of_each_other(trees: dict[str, ast.Module]) -> None:
    imports: dict[str, set[str]] = {}
    for path, tree in trees.items():
        name = ".".join(Path(path).with_suffix("").parts[:2])
        found = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        if name.startswith("reconciler."):
            parts = {".".join(module.split(".")[:2]) for module in found if module.startswith("reconciler.")}
            imports.setdefault(name, set()).update(parts - {name})

    def levels(name: str) -> int:
        return 1 + max(map(levels, imports.get(name, ())), default=0)

    assert sum(map(len, imports.values())) <= MAX_IMPORTS
    assert max(map(levels, imports)) <= MAX_LEVELS


def test_no_class_name_is_used_twice_in_the_binding_path(trees: dict[str, ast.Module]) -> None:
    path = ("reconciler/", "shared/framework/", "shared/kube/")
    names = [
        node.name
        for file, tree in trees.items()
        if file.startswith(path)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def prose_of(tree: ast.Module, source: str) -> str:
    """Return the docstrings and comments of a module."""
    definitions = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, definitions)]
    # Not tokenized, which takes ten times as long; a "# " in a string literal counts as well.
    comments = re.findall(r"(?:^|\s)# (.*)$", source, re.MULTILINE)
    return "\n".join([text for text in docstrings if text] + comments)
