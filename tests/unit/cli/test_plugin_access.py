"""``bowline plugin access`` prints the chart's values for the plugins of a configuration."""

from pathlib import Path

import pytest
import yaml

from bowline.framework.access import Access, AccessRule
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.config import Settings
from bowline.framework.plugin import AdmissionPlugin, PluginConfig
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline_cli.main import main
from bowline_cli.plugin_access import values_of


class SeatsConfig(PluginConfig):
    namespace: str


class Seats(AdmissionPlugin[SeatsConfig], BindingPlugin[SeatsConfig]):
    name = "seats"
    access = Access(rules=(AccessRule("configmaps", ("get", "create"), namespace="{namespace}"),))


def test_only_plugins_that_are_not_built_in_are_printed_with_their_arguments() -> None:
    plugins = [*Registry(BUILTINS).build(Settings()), Seats(SeatsConfig(namespace="theirs"), Settings())]
    assert yaml.safe_load(values_of(plugins)) == {
        "pluginAccess": [
            {
                "plugin": "seats",
                "rules": [{"resource": "configmaps", "verbs": ["get", "create"], "namespace": "theirs"}],
            }
        ]
    }


def test_a_configuration_without_other_plugins_needs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n")
    assert main(["plugin", "access", "--config", str(config)]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"pluginAccess": []}
