"""Debug pages of plugins: a plugin whose routes fail has none, and the other pages exist."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.framework.binding.handle import Route
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.config import Settings
from bowline.framework.plugin import Plugin, PluginConfig
from bowline_reconciler.debug import configuration_pages
from bowline_reconciler.observe.metrics import ReconcilerMetrics
from bowline_reconciler.options import parse_options


def plugin(called: str, act: Callable[..., Any]) -> Plugin:
    kind = type(called, (BindingPlugin,), {"name": called, "routes": lambda _: act()})
    made: Plugin = kind(PluginConfig(), Settings())
    return made


def raises() -> Any:
    raise KeyError("typo")


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(raises, id="raises"),
        pytest.param(lambda: None, id="nothing"),
        pytest.param(lambda: Route("a", dict), id="a route instead of a list"),
        pytest.param(lambda: [("a", dict)], id="pairs"),
        pytest.param(lambda: [Route("a", {})], id="content that is not a function"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_in_routes_is_counted_and_costs_no_other_page(mistake: Callable[..., Any]) -> None:
    plugins = [plugin("author", mistake), plugin("other", lambda: [Route("state", dict)])]
    registry = CollectorRegistry()
    metrics = ReconcilerMetrics(registry, {"routes": ("author", "other")})
    pages = configuration_pages(Settings(), parse_options([], {}), plugins, metrics.plugin_errors)
    assert [page.path for page in pages] == ["config", "plugins", "plugins/other/state"]
    assert pages[1].content()["plugins"][0]["pages"] == []

    def errors(name: str) -> float | None:
        of = {"plugin": name, "point": "routes"}
        return registry.get_sample_value("bowline_plugin_errors_total", of)

    assert (errors("author"), errors("other")) == (1, 0)
