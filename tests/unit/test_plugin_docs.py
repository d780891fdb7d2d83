"""docs/plugins.md names every extension point and every budget with its default, and nothing else."""

import inspect
import re
from dataclasses import asdict, fields
from pathlib import Path

from bowline.shared.framework.binding.context import BindContext
from bowline.shared.framework.binding.plugin import BindingPlugin, Budgets
from bowline.shared.framework.plugin import AdmissionPlugin, Plugin

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
