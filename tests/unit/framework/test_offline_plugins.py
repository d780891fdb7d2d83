"""The plugins of offline lint, compared with those of the webhook."""

import pytest

from bowline.framework.config import PluginEntry, Settings
from bowline.framework.interface.plugin import AdmissionPlugin
from bowline.plugins.catalog import build_plugins
from bowline.plugins.offline import DEFAULT, offline_plugins


def test_they_are_the_plugins_that_admission_calls_by_default_in_their_order() -> None:
    settings = Settings()
    expectation = [plugin for plugin in build_plugins(settings) if isinstance(plugin, AdmissionPlugin)]
    assert [plugin.name for plugin in offline_plugins(settings)] == [plugin.name for plugin in expectation]
    for offline, plugin in zip(offline_plugins(settings), expectation, strict=True):
        assert isinstance(plugin, type(offline))
        assert offline.args == plugin.args


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(Settings(plugins=(PluginEntry(name="hami_core"),)), id="another plugin is enabled"),
        pytest.param(Settings(plugins=(PluginEntry(name="gpu_request", enabled=False),)), id="one is disabled"),
    ],
)
def test_a_configuration_that_names_plugins_is_resolved_as_in_the_cluster(settings: Settings) -> None:
    names = [plugin.name for plugin in offline_plugins(settings)]
    assert names == [plugin.name for plugin in build_plugins(settings)] != [plugin.name for plugin in DEFAULT]
