"""Plugin authors import from one module: it is complete, documented, and sufficient for the example."""

import ast
import inspect
from pathlib import Path

import bowline.shared.plugin
from bowline.shared.framework.binding.plugin import BindingPlugin
from bowline.shared.framework.plugin import AdmissionPlugin

ROOT = Path(__file__).resolve().parents[3]


def imports_of(path: Path) -> set[str]:
    """The modules of Bowline that a file imports from."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {module for module in modules if module.startswith("shared")}


def test_all_lists_exactly_the_imported_names() -> None:
    names = {name for name in vars(bowline.shared.plugin) if not name.startswith("__")}
    assert names == set(bowline.shared.plugin.__all__)


def test_every_type_in_a_signature_of_plugin_is_exported() -> None:
    builtin_names = {"Args_co", "Collection", "Iterable", "Mapping", "Any", "None", "str", "bool"}
    members = (*inspect.getmembers(AdmissionPlugin), *inspect.getmembers(BindingPlugin))
    for name, method in (member for member in members if inspect.isfunction(member[1])):
        for annotation in inspect.get_annotations(method).values():
            text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            words = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            words |= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
            types = {word for word in words if word[0].isupper()} - builtin_names
            assert types <= set(bowline.shared.plugin.__all__), name


def test_the_example_plugins_import_only_from_it() -> None:
    examples = list((ROOT / "examples" / "plugins").rglob("*.py"))
    assert set().union(*map(imports_of, examples)) == {"bowline.shared.plugin"}


def test_the_guide_names_it() -> None:
    assert "from bowline.shared.plugin import" in (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
