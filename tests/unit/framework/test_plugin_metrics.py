"""A plugin's own series: their names, their values from the start, and rejected names."""

import pytest
from prometheus_client import CollectorRegistry

from bowline.framework.interface.metrics import PluginMetrics


def test_series_are_named_after_their_plugin_and_begin_at_zero() -> None:
    registry = CollectorRegistry()
    metrics = PluginMetrics("my-plugin", registry)
    metrics.counter("things_total", "Things.", how=("fast", "slow"))
    metrics.gauge("level", "A level.")
    metrics.histogram("wait_seconds", "A wait.", how=("fast",))
    named = [
        ("bowline_my_plugin_things_total", {"how": "fast"}),
        ("bowline_my_plugin_things_total", {"how": "slow"}),
        ("bowline_my_plugin_level", {}),
        ("bowline_my_plugin_wait_seconds_count", {"how": "fast"}),
    ]
    assert [registry.get_sample_value(name, labels) for name, labels in named] == [0.0] * 4


@pytest.mark.parametrize(
    ("kind", "name", "labels", "rule"),
    [
        pytest.param("counter", "things", {}, "digits and _ and ends with _total", id="a counter of another name"),
        pytest.param("histogram", "wait", {}, "digits and _ and ends with _seconds", id="a wait without its unit"),
        pytest.param("gauge", "Level-1", {}, "its name consists of small letters, digits and _", id="no name"),
        pytest.param("gauge", "level", {"node": ()}, "label node is declared with all", id="a label without values"),
        pytest.param("gauge", "level", {"node": "n1"}, "label node is declared with all", id="a text for a list"),
        pytest.param("counter", "taken_total", {}, "bowline_mine_taken_total is registered already", id="twice"),
    ],
)
def test_an_invalid_name_is_rejected_with_the_plugin_and_the_rule(
    kind: str, name: str, labels: dict[str, tuple[str, ...]], rule: str
) -> None:
    metrics = PluginMetrics("mine", CollectorRegistry())
    metrics.counter("taken_total", "The first.")
    with pytest.raises(ValueError, match="plugin mine: metric '") as caught:
        getattr(metrics, kind)(name, "A meaning.", **labels)
    assert rule in str(caught.value)
