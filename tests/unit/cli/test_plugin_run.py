"""``bowline plugin run`` installs the chart for pods of the default schedulers and of those that are named."""

import pytest

from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.plugins.node_fit import NodeFit
from bowline_cli.main import main
from bowline_cli.plugin_run import chart_values


@pytest.mark.parametrize(
    ("named", "expectation"),
    [
        pytest.param([], ["kai-scheduler", "bowline"], id="the defaults"),
        pytest.param(["mine", "yours"], ["kai-scheduler", "bowline", "mine", "yours"], id="beside the defaults"),
        pytest.param(["bowline", "mine", "mine"], ["kai-scheduler", "bowline", "mine"], id="each once"),
    ],
)
def test_a_named_scheduler_is_in_scope_beside_the_defaults(named: list[str], expectation: list[str]) -> None:
    values = chart_values(NodeFit(PluginConfig(), Settings()), {}, named)
    assert values == {
        "config.plugins": [{"name": "node_fit", "args": {}}],
        "config.schedulerNames": expectation,
        "pluginAccess": [],
    }


def test_an_empty_name_is_rejected_before_a_cluster_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["plugin", "run", "node_fit", "--scheduler-name="])
    assert exit_.value.code == 2
    assert "--scheduler-name: must not be empty" in capsys.readouterr().err
