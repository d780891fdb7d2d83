"""``bowline plugin access`` prints the chart's values for the plugins of a configuration."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from bowline.framework.config import Settings
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.plugin import AdmissionPlugin, PluginConfig
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS, plugin_access
from bowline_cli.main import main


class SeatsConfig(PluginConfig):
    namespace: str


class Seats(AdmissionPlugin[SeatsConfig], BindingPlugin[SeatsConfig]):
    name = "seats"
    access = Access(rules=(AccessRule("configmaps", ("get", "create"), namespace="{namespace}"),))


class ServerConfig(PluginConfig):
    server: str


class Desks(Seats):
    """Needs an argument that no rule names."""

    name = "desks"
    config_model = ServerConfig
    access = Access(rules=(AccessRule("configmaps", ("get",)),))


def test_only_plugins_that_are_not_built_in_are_printed_with_their_arguments() -> None:
    plugins = [*Registry(BUILTINS).build(Settings()), Seats(SeatsConfig(namespace="theirs"), Settings())]
    assert plugin_access(plugins) == [
        {"plugin": "seats", "rules": [{"resource": "configmaps", "verbs": ["get", "create"], "namespace": "theirs"}]}
    ]


def test_an_argument_is_needed_only_where_a_rule_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {
        kind.name: EntryPoint(kind.name, f"{__name__}:{kind.__name__}", "bowline.plugins") for kind in (Desks, Seats)
    }
    monkeypatch.setattr("bowline_cli.plugin.installed_plugins", lambda: [points["desks"]])
    monkeypatch.setattr(Registry.__init__, "__defaults__", ((), lambda: list(points.values())))
    assert main(["plugin", "access"]) == 0
    assert [entry["plugin"] for entry in yaml.safe_load(capsys.readouterr().out)["pluginAccess"]] == ["desks"]
    monkeypatch.setattr("bowline_cli.plugin.installed_plugins", lambda: list(points.values()))
    assert main(["plugin", "access"]) == 2
    assert "seats.args.namespace" in (text := capsys.readouterr().err)
    assert "--config" in text


def test_a_configuration_without_other_plugins_needs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n")
    assert main(["plugin", "access", "--config", str(config)]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"pluginAccess": []}
