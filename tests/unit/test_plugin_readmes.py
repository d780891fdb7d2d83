"""Every plugin's README lists its settings and metrics correctly.

Section "Settings" is a table of setting, default, unit and meaning: ``args.<name>`` of the plugin's own and, by their
path in the configuration, those that it shares with others. Section "Metrics" names the plugin's own series.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.config import Settings
from bowline.framework.gates import GATES
from bowline.framework.plugin import Plugin
from bowline.kube.client import KubeClient
from bowline.plugins.catalog import BUILTINS
from bowline.testing.handles import handle_for

PLUGINS = Path(__file__).resolve().parents[2] / "shared" / "bowline" / "plugins"
EVERY = [pytest.param(builtin.plugin, id=builtin.plugin.name) for builtin in BUILTINS]
_ROW = re.compile(r"^\| `(?P<path>[\w.]+)` \| (?P<default>[^|]+) \| (?P<unit>[^|]+) \| (?P<meaning>[^|]+) \|$")


def section(plugin: str, title: str) -> list[str]:
    """The lines of one section of the plugin's README."""
    text = (PLUGINS / plugin / "README.md").read_text()
    _, heading, rest = text.partition(f"\n## {title}\n")
    assert heading, f"the README of {plugin} has no section {title}"
    return rest.partition("\n## ")[0].splitlines()


def documented_defaults(plugin: str) -> Iterator[tuple[str, str]]:
    """Path and default of every setting in the README's table."""
    for line in section(plugin, "Settings"):
        if line.startswith("| `"):
            row = _ROW.match(line)
            assert row, f"not a row of setting, default, unit, meaning: {line}"
            yield row["path"], row["default"].strip("`")


def as_text(value: Any) -> str:
    """A default as the tables write it."""
    if value in ("", [], {}):
        return "empty" if value == "" else "none"
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)


def args(plugin: type[Plugin]) -> dict[str, str]:
    """The plugin's own settings with their defaults, as the configuration spells them."""
    defaults = plugin.config_model().model_dump(mode="json", by_alias=True)
    return {f"args.{name}": as_text(value) for name, value in defaults.items()}


def shared_default(path: str) -> str:
    """The default of a setting that is not one plugin's own. Raises KeyError if there is none by that path."""
    first, _, rest = path.partition(".")
    if first == "featureGates":
        return as_text({gate.name: gate.default for gate in GATES}[rest])
    value: Any = Settings().model_dump(mode="json", by_alias=True)
    for word in path.split("."):
        value = value[word]
    return as_text(value)


@pytest.mark.parametrize("plugin", EVERY)
def test_every_setting_is_in_the_readme_with_its_default(plugin: type[Plugin]) -> None:
    table = dict(documented_defaults(plugin.name))
    own_defaults = {path: default for path, default in table.items() if path.startswith("args.")}
    assert own_defaults == args(plugin)
    assert {path: default for path, default in table.items() if path not in own_defaults} == {
        path: shared_default(path) for path in table if path not in own_defaults
    }
    if not own_defaults:
        assert any("takes no `args`" in line for line in section(plugin.name, "Settings"))


def test_every_setting_that_plugins_share_is_in_some_readme() -> None:
    sharing = Settings().gpu_sharing.model_dump(by_alias=True)
    shared = {f"gpuSharing.{name}" for name in sharing} | {"gpuDeviceClasses"}
    paths = {path for builtin in BUILTINS for path, _ in documented_defaults(builtin.plugin.name)}
    assert shared <= paths


@pytest.mark.parametrize("plugin", EVERY)
async def test_every_series_of_a_plugin_is_in_its_readme(plugin: type[Plugin]) -> None:
    registry = CollectorRegistry()
    instance = plugin(plugin.config_model(), Settings())
    if isinstance(instance, BindingPlugin):
        await instance.setup(handle_for(plugin.name, cast(KubeClient, None), registry=registry))
    metric_names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()
    }
    text = "\n".join(section(plugin.name, "Metrics"))
    assert set(re.findall(r"`(bowline_\w+)`", text)) == metric_names
