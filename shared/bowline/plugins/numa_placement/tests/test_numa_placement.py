"""The annotation with the pod's predicted NUMA zones."""

import logging
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.kube.client import KubeClient
from bowline.plugins.numa_placement import NumaPlacement, as_annotation
from bowline.testing.builders import bind_request, stored


def bind_context(**spec: Any) -> BindContext:
    return BindContext(
        request=decode_bind_request(stored(bind_request(uid="pod-uid", **spec))),
        pod=None,
        node=None,
        attempt=1,
        attempt_id="request-1",
        deadline=datetime.now(UTC),
        client=cast(KubeClient, None),  # the plugin makes no call
        log=logging.LoggerAdapter(logging.getLogger(__name__)),
    )


ANNOTATION = "kai.scheduler/numa-placement-predicted"
MEMORY_ANNOTATION = "kai.scheduler/numa-memory-groups-predicted"


@pytest.mark.parametrize(
    ("zones", "text"),
    [
        pytest.param([{"zone": "0", "amount": {"cpu": "4"}}], '[{"zone":"0","amount":{"cpu":"4"}}]',
            id="one zone, compact"),
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
    assert plugin.binding_annotations(bind_context(**spec)) == annotations
