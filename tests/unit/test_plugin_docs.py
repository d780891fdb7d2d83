"""docs/plugins.md has every extension point with its signature, every budget with its default, and nothing else."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import BindingPlugin, Budgets
from bowline.framework.plugin import AdmissionPlugin, Plugin

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """The cells of each row of the table whose first column has that title."""
    table = re.search(rf"^\| {title} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def methods() -> dict[str, bool]:
    """The extension points, and whether each is asynchronous."""
    members = {
        name: member for kind in (Plugin, AdmissionPlugin, BindingPlugin) for name, member in vars(kind).items()
    }
    methods = {name: member for name, member in members.items() if inspect.isfunction(member)}
    return {name: inspect.iscoroutinefunction(member) for name, member in methods.items() if not name.startswith("_")}


def test_every_extension_point_is_documented_with_its_kind_and_budget() -> None:
    table = {cells[0].strip("`"): cells for cells in rows("point")}
    assert table.keys() == methods().keys()
    for name, is_async in methods().items():
        kind, budget = table[name][3:5]
        assert kind.startswith("async") is is_async, name
        assert (budget.strip("`").split("`")[0] in asdict(Budgets())) is is_async, name


def test_every_budget_is_documented_with_its_default() -> None:
    assert {cells[0].strip("`"): float(cells[1]) for cells in rows("budget")} == asdict(Budgets())


def test_every_field_of_the_context_is_documented() -> None:
    named = {name for cells in rows("field") for name in re.findall(r"`ctx\.(\w+)`", cells[0])}
    assert named == {field.name for field in fields(BindContext)} | {"spec"}


def signatures() -> Iterator[str]:
    """The classes of the interface and their methods, as they are declared."""
    for kind in (Plugin, AdmissionPlugin, BindingPlugin):
        yield f"class {kind.__name__}:"
        for name, member in vars(kind).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                word = "async def" if inspect.iscoroutinefunction(member) else "def"
                # Without the modules of the types: all are names of the package.
                signature = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(inspect.signature(member)))
                signature = re.sub(r"\b(pod|old|request): Mapping\[str, Any\]", r"\1: Object", signature)
                yield f"    {word} {name}{signature}: ..."


def test_the_signatures_are_those_of_the_code() -> None:
    block = re.search(r"^## Signatures\n\n```python\n(.*?)```", TEXT, re.MULTILINE | re.DOTALL)
    assert block is not None
    # Lines may be broken differently.
    assert ast.unparse(ast.parse(block[1])) == ast.unparse(ast.parse("\n".join(signatures())))


def test_every_method_of_the_interface_has_a_docstring() -> None:
    undocumented = [
        f"{kind.__name__}.{name}"
        for kind in (Plugin, AdmissionPlugin, BindingPlugin)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_") and not inspect.getdoc(member)
    ]
    assert undocumented == []
