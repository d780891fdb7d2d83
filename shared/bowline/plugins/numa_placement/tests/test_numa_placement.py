"""The annotation with the pod's predicted NUMA zones."""

from typing import Any

import pytest

from bowline.framework.config import Settings
from bowline.framework.interface.plugin import PluginConfig
from bowline.plugins.numa_placement import NumaPlacement, as_annotation
from bowline.testing.builders import bind_request, stored
from bowline.testing.handles import context_for

ANNOTATION = "kai.scheduler/numa-placement-predicted"
MEMORY_ANNOTATION = "kai.scheduler/numa-memory-groups-predicted"


@pytest.mark.parametrize(
    ("zones", "text"),
    [
        pytest.param([{"amount": {"cpu": "500m"}, "zone": "node-1"}], '[{"zone":"node-1","amount":{"cpu":"500m"}}]',
            id="the zone is first, in any stored order"),
        pytest.param([{"zone": "0", "amount": {"nvidia.com/gpu": 2, "memory": "1.50Gi"}}, {"zone": "1",
            "amount": {}}], '[{"zone":"0","amount":{"nvidia.com/gpu":2,"memory":"1.50Gi"}},{"zone":"1","amount":{}}]',
            id="quantities and the order of zones are unchanged"),
        pytest.param([{"zone": "ü", "amount": {}, "distance": 10}], '[{"zone":"ü","amount":{},"distance":10}]',
            id="a field of a newer scheduler is kept"),
    ],
)  # fmt: skip
def test_zones_are_written_as_json(zones: list[dict[str, Any]], text: str) -> None:
    assert as_annotation(zones, "zone") == text


@pytest.mark.parametrize(
    ("spec", "annotations"),
    [
        pytest.param({}, {}, id="nothing without zones"),
        pytest.param({"predictedNUMAMemoryGroups": [{"amount": {"memory": "1Gi"}, "memoryNodes": ["0", "1"]}]},
            {MEMORY_ANNOTATION: '[{"memoryNodes":["0","1"],"amount":{"memory":"1Gi"}}]'},
            id="memory groups become their own"),
        pytest.param({"predictedNUMAZones": [{"zone": "0", "amount": {"cpu": "1"}}]},
            {ANNOTATION: '[{"zone":"0","amount":{"cpu":"1"}}]'}, id="zones become the annotation"),
    ],
)  # fmt: skip
def test_the_binding_has_the_zones(spec: dict[str, Any], annotations: dict[str, str]) -> None:
    plugin = NumaPlacement(PluginConfig(), Settings())
    assert plugin.binding_annotations(context_for(stored(bind_request(**spec)), None)) == annotations
