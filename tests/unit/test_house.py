"""Rules of the code base that no linter checks: docstrings, sizes, constant log messages, what is tested where."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("webhook", "reconciler", "shared", "cli", "tools")
MAX_MODULE = 500  # review a module at 300 lines
MAX_FUNCTION = 60
# Parsing every module may take long beside other tests.
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every module of the product, parsed once."""
    paths = [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path): ast.parse((ROOT / path).read_text()) for path in paths if "tests" not in path.parts}


def test_every_module_has_a_docstring_that_states_what_it_models(trees: dict[str, ast.Module]) -> None:
    assert [path for path, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_modules_and_functions_have_bounded_sizes(trees: dict[str, ast.Module]) -> None:
    long = {path: lines for path in trees if (lines := len((ROOT / path).read_text().splitlines())) > MAX_MODULE}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                long |= {f"{path}: {node.name}": lines} if lines > MAX_FUNCTION else {}
    assert long == {}


def log_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls on a logger, by its names in this code: ``log``, ``logger``, ``c.log``."""
    levels = {"debug", "info", "warning", "error", "exception", "critical"}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(function := node.func, ast.Attribute)
            and function.attr in levels
        ):
            yield from [node] if ast.unparse(function.value).rpartition(".")[2] in ("log", "logger") else []


def test_messages_of_log_lines_are_constants_whose_values_are_fields(trees: dict[str, ast.Module]) -> None:
    """Ruff rejects what formats a message; this finds values as further arguments, and variables."""
    calls = [
        (path, call)
        for path, tree in trees.items()
        if not path.startswith(("cli", "tools"))
        for call in log_calls(tree)
    ]
    assert len(calls) > 50
    assert [
        f"{path}:{call.lineno}"
        for path, call in calls
        if len(call.args) != 1
        or not isinstance(call.args[0], ast.Constant)
        or re.search("[%{}]", str(call.args[0].value))
    ] == []


# Of docs/testing.md: what the tests of a kind of fact import, and the folders in which they lie.
PLACES = {
    r"bowline\.localcluster\.(?:cluster|controlplane|api) import|tests\.(?:live|pairs) import": "any but unit",
    r"tests\.chart\.rendering import": "chart",
    r"tests\.simulation\.server import": "simulation",
    r"bowline_reconciler\.decide\.(?:decide|outcome|step) import": "unit",
}


@pytest.mark.parametrize(("imported", "place"), PLACES.items())
def test_each_kind_of_fact_is_tested_in_one_place(imported: str, place: str) -> None:
    """A decision in a table, order and faults in the simulation, Kubernetes' part on an API server."""
    files = [*(ROOT / "tests").glob("*/**/test_*.py"), *(ROOT / "shared").rglob("test_*.py")]
    folders = {
        "unit" if path.is_relative_to(ROOT / "shared") else path.relative_to(ROOT / "tests").parts[0]
        for path in files
        if re.search(f"^from (?:{imported})", path.read_text(), re.MULTILINE)
    }
    assert folders
    if place == "any but unit":
        assert "unit" not in folders
    else:
        assert folders <= {place, "mutants"}


def test_the_distribution_of_the_suite_names_existing_paths(request: pytest.FixtureRequest) -> None:
    plugin = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert plugin is not None
    assert [path for path in (*plugin.BY_FILE, *plugin.FIRST, *plugin.LAST) if not (ROOT / path).exists()] == []
