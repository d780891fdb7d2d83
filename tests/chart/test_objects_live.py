"""Every object of every preset, accepted by the real API server as Helm sends it: the newest one, and by
`make test-kubernetes VERSION=1.32` the oldest that is supported.
"""

import json
from typing import Any

import pytest
import yaml

from bowline.localcluster.cluster import Cluster
from tests.chart.presets import PRESETS, UNRESTRICTED
from tests.chart.rendering import CHART, Chart

SCHEDULER = CHART.parents[1] / "examples" / "scheduler" / "values.yaml"
FILES = [*sorted((CHART / "presets").glob("*.yaml")), SCHEDULER]


@pytest.fixture(scope="module")
def accepted_objects() -> set[str]:
    """The objects, in JSON, that the API server has accepted."""
    return set()


@pytest.mark.parametrize(
    "values",
    [*PRESETS, *UNRESTRICTED, *(pytest.param(yaml.safe_load(file.read_text()), id=file.stem) for file in FILES)],
)
def test_every_object_of_every_preset_is_accepted_as_it_is(
    chart: Chart, chart_cluster: Cluster, accepted_objects: set[str], values: dict[str, Any]
) -> None:
    """Server-side and strict, as Helm 4 installs: a misspelt field or an invalid CEL condition fails here.

    Each object is accepted by itself: what an earlier preset has in the same form is left out.
    """
    objects = [obj for obj in map(json.dumps, chart.render(values).objects) if obj not in accepted_objects]
    assert objects
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    result = chart_cluster.kubectl(*command, input="\n".join(objects))
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == len(objects)
    accepted_objects.update(objects)
