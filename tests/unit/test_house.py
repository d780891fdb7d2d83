"""Rules of the code base that no linter checks: sizes, docstrings, owners of state, names, links and paths."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# Each parses every module.
pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("webhook", "reconciler", "shared", "cli", "tools")
MAX_MODULE = 500  # review a module at 300 lines
MAX_FUNCTION = 60
# The first test waits until all modules are parsed.
pytestmark = pytest.mark.timeout(120)
# Parts joined by slashes; the name of a test may follow.
REPOSITORY_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+)/?(?:::[^`]*)?`")


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        folder = ROOT / package
        yield from (path for path in sorted(folder.rglob("*.py")) if "tests" not in path.relative_to(folder).parts)


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
    cited_numbers: set[int] = set()
    for path in sources:
        for numbers in re.findall(r"\b[Dd]ecisions? (\d+(?:(?:, | and )\d+)*)\b", path.read_text()):
            cited_numbers |= {int(number) for number in re.findall(r"\d+", numbers)}
            assert cited_numbers <= records, f"{path.relative_to(ROOT)} cites a decision that does not exist"
    assert records <= cited_numbers, f"not cited: {records - cited_numbers}"


def test_links_between_documents_lead_to_files() -> None:
    broken = []
    for path in documents():
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text()):
            if not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def test_the_index_of_the_documents_lists_every_page() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (docs / "README.md").read_text()))
    assert {path.name for path in docs.glob("*.md")} - {"README.md"} == linked


def test_the_distribution_of_the_suite_names_existing_paths(request: pytest.FixtureRequest) -> None:
    plugin = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert plugin is not None
    assert [path for path in (*plugin.BY_FILE, *plugin.FIRST, *plugin.LAST) if not (ROOT / path).exists()] == []


def test_paths_in_backticks_exist() -> None:
    """A path is relative to the root or to tests/, and starts with a folder of one of them."""
    bases = (ROOT, ROOT / "tests")
    build_folders = {"build", "dist"}
    folders = {folder.name for base in bases for folder in base.iterdir() if folder.is_dir()} - build_folders
    missing = []
    for document in documents():
        for path in REPOSITORY_PATH.findall(document.read_text()):
            if path.split("/")[0] in folders and not any((base / path).exists() for base in bases):
                missing.append(f"{document.relative_to(ROOT)}: {path}")
    assert missing == []


def test_the_state_of_requests_is_changed_by_its_owners_only(trees: dict[str, ast.Module]) -> None:
    """No module of the binding cycle assigns to an attribute of another object."""
    cycle = {path: tree for path, tree in trees.items() if path.startswith("reconciler/bowline_reconciler/binding/")}
    cycle["reconciler/bowline_reconciler/reconciler.py"] = trees["reconciler/bowline_reconciler/reconciler.py"]
    attributes = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in cycle.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self"
    ]
    assert attributes == []


def test_no_service_of_the_reconciler_is_reached_through_another_one(trees: dict[str, ast.Module]) -> None:
    """A class has the services that it uses; what a service does with another one is a method of it.

    A service is a class with a constructor of its own, or a dataclass with a service among its fields.
    """
    classes = {node.name: node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)}
    types = {name: attribute_types(node) for name, node in classes.items()}
    services = {name for name, node in classes.items() if constructor_of(node) is not None}
    while holders := {
        name for name, own in types.items() if name not in services and services & set().union(*own.values())
    }:
        services |= holders
    reconciler = [
        node
        for path, tree in trees.items()
        for node in tree.body
        if path.startswith("reconciler/") and isinstance(node, ast.ClassDef)
    ]
    names = {node.name for node in reconciler}
    assert [
        f"{node.name}: {ast.unparse(chain)}"
        for node in reconciler
        for chain in ast.walk(node)
        if isinstance(chain, ast.Attribute)
        and isinstance(chain.value, ast.Attribute)
        and ast.unparse(chain.value.value) == "self"
        for owner in types[node.name].get(chain.value.attr, set()) & names
        if types[owner].get(chain.attr, set()) & services
    ] == []


def constructor_of(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)


def attribute_types(node: ast.ClassDef) -> dict[str, set[str]]:
    """The classes of each attribute: of fields, properties, and what the constructor assigns."""
    types = {
        ast.unparse(item.target): names_in(item.annotation) for item in node.body if isinstance(item, ast.AnnAssign)
    }
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.returns is not None and item.decorator_list:
            types[item.name] = names_in(item.returns)
    constructor = constructor_of(node)
    if constructor is None:
        return types
    arguments = (*constructor.args.args, *constructor.args.kwonlyargs)
    of_arguments = {item.arg: names_in(item.annotation) for item in arguments if item.annotation is not None}
    for step in ast.walk(constructor):
        if isinstance(step, ast.AnnAssign):
            types[ast.unparse(step.target).removeprefix("self.")] = names_in(step.annotation)
        elif isinstance(step, ast.Assign):
            name = ast.unparse(step.value.func if isinstance(step.value, ast.Call) else step.value)
            classes = of_arguments.get(name, {name})
            types |= {ast.unparse(target).removeprefix("self."): classes for target in step.targets}
    return types


def names_in(annotation: ast.expr) -> set[str]:
    """The classes of a value with that annotation; of a container not those of its elements."""
    match annotation:
        case ast.BinOp():
            return names_in(annotation.left) | names_in(annotation.right)
        case ast.Subscript():
            return names_in(annotation.value)
        case _:
            return {ast.unparse(annotation)}


def documents() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in ("docs", "shared", "examples", "charts"):
        yield from sorted((ROOT / folder).rglob("*.md"))


def test_the_map_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_bytes()) <= 6 * 1024


def test_the_repository_has_no_links() -> None:
    """A ZIP, or a checkout on Windows, has text files in their place."""
    listing = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line for line in listing.stdout.splitlines() if line.startswith("120000")] == []


def test_the_files_that_answer_questions_exist() -> None:
    answers = re.findall(r"\? \| `([^`]+)` \|", (ROOT / "AGENTS.md").read_text())
    assert len(answers) > 15
    assert [answer for answer in answers if not (ROOT / answer).is_file()] == []


def test_no_class_name_is_used_twice(trees: dict[str, ast.Module]) -> None:
    """Each process has a class for its own options."""
    names = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert sorted(name for name, number in names.items() if number > 1) == ["Options"]
