"""The interface of plugin authors: complete, documented, sufficient for the example, and changed only on purpose."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import bowline.plugin
from bowline import AdmissionPlugin, BindingPlugin
from tests import public_api

ROOT = Path(__file__).resolve().parents[3]
SNAPSHOT = Path(__file__).with_name("public_api.txt")


def imports_of(path: Path) -> set[str]:
    """The modules of Bowline that a file imports from."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {module for module in modules if module.partition(".")[0] == "bowline"}


def test_the_public_api_is_that_of_the_snapshot() -> None:
    """A removed or renamed line breaks plugins: deprecate it in the changelog two minor versions before.

    After an intended change: ``python -m tests.public_api > tests/unit/framework/public_api.txt``.
    """
    assert list(public_api.lines()) == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def test_importing_the_package_does_not_load_the_framework() -> None:
    program = "import sys, bowline; print([name for name in sys.modules if name.startswith('bowline.')])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_type_in_a_signature_of_plugin_is_exported() -> None:
    builtin_names = {"Args_co", "Collection", "Iterable", "Mapping", "Any", "None", "str", "bool"}
    members = (*inspect.getmembers(AdmissionPlugin), *inspect.getmembers(BindingPlugin))
    for name, method in (member for member in members if inspect.isfunction(member[1])):
        for annotation in inspect.get_annotations(method).values():
            text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
            words = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            words |= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
            types = {word for word in words if word[0].isupper()} - builtin_names
            assert types <= set(bowline.plugin.__all__), name


def test_the_example_plugins_import_only_from_it() -> None:
    examples = list((ROOT / "examples" / "plugins").rglob("*.py"))
    assert set().union(*map(imports_of, examples)) <= set(public_api.MODULES)
    assert any(map(imports_of, examples))
