"""The allocations of the plugin and its annotations. Its Binding is tested on a real API server, in tests/pair."""

from typing import Any

import pytest

from bowline.framework.config import Settings
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import PluginConfig
from bowline.plugins.default_binder import DefaultBinder
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.handles import context_for


def context(**spec: Any) -> BindContext:
    return context_for(stored(bind_request(**spec)), stored(pod()))


@pytest.mark.parametrize(
    ("fields", "annotation"),
    [
        pytest.param({}, "Regular", id="an empty request, of a CPU pod"),
        pytest.param({"receivedResourceType": "Fraction"}, "Fraction", id="a share, prepared by another plugin"),
    ],
)
def test_the_pod_is_annotated_with_its_resource_type(fields: dict[str, str], annotation: str) -> None:
    plugin = DefaultBinder(PluginConfig(), Settings())
    assert plugin.binding_annotations(context(**fields)) == {"received-resource-type": annotation}
