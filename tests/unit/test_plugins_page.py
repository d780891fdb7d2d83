"""The page of built-in plugins has each with its settings, their defaults, and its metrics.

Settings are rows of setting, default, unit and meaning: ``args.<name>`` of the plugin's own and, by their path in the
configuration, those that it shares with others.
"""

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.plugin import Plugin
from bowline.kube.client import KubeClient
from bowline.plugins.catalog import BUILTINS
from bowline.testing.handles import handle_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "built-in-plugins.md"
ROW = re.compile(r"^\| `(?P<path>[\w.]+)` \| (?P<default>[^|]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
SHARED = Settings().model_dump(mode="json", by_alias=True)


def section(plugin: str) -> str:
    _, heading, rest = PAGE.read_text().partition(f"\n## {plugin}\n")
    assert heading, f"the page has no section {plugin}"
    return rest.partition("\n## ")[0]


def as_text(value: Any) -> str:
    """A default as the tables write it."""
    if value in ("", [], {}):
        return "empty" if value == "" else "none"
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)


def shared_default(path: str) -> str:
    """The default of a setting that is not one plugin's own. Raises KeyError if there is none by that path."""
    value: Any = SHARED
    for word in path.split("."):
        value = value[word]
    return as_text(value)


@pytest.mark.parametrize("plugin", [pytest.param(builtin.plugin, id=builtin.plugin.name) for builtin in BUILTINS])
async def test_the_page_has_every_setting_with_its_default_and_every_series(plugin: type[Plugin]) -> None:
    table = {row["path"]: row["default"].strip("`") for row in ROW.finditer(section(plugin.name))}
    own = plugin.config_model().model_dump(mode="json", by_alias=True)
    shared = {path: shared_default(path) for path in table if not path.startswith("args.")}
    assert table == shared | {f"args.{name}": as_text(value) for name, value in own.items()}
    registry, instance = CollectorRegistry(), plugin(plugin.config_model(), Settings())
    if isinstance(instance, BindingPlugin):
        await instance.setup(handle_for(plugin.name, cast(KubeClient, None), registry=registry))
    series = {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}
    assert set(re.findall(r"`(bowline_\w+)`", section(plugin.name))) == series
