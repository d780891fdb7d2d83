"""Our offline checks of quantities have the same results as a real API server.

Rows are from the tables of the unit tests: a rule that is stricter or laxer than the API server fails a row here.
"""

import math
from typing import Any

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.plugins.gpu_request.tests.builders import Found
from bowline.plugins.gpu_request.tests.test_devices import RESOURCES
from tests.unit.api.test_quantity import ACCEPTED, REFUSED

QUOTAS = "/api/v1/namespaces/default/resourcequotas?dryRun=All"
PODS = "/api/v1/namespaces/default/pods?dryRun=All"


def answer(cluster: Cluster, path: str, body: dict[str, Any]) -> int:
    """Return the status of a request that stores nothing."""
    try:
        cluster.api.post(path, body)
    except LocalApiError as error:
        return error.status
    return 201


def is_infinite(value: Any) -> bool:
    """Return whether the value cannot be in JSON: YAML has it, but it never reaches the API server."""
    return isinstance(value, float) and not math.isfinite(value)


def quota(quantity: Any) -> dict[str, Any]:
    # A quota's cpu takes any quantity that is not negative: only its parsing is tested.
    return {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": quantity}}}


@pytest.mark.parametrize(("quantity", "value"), ACCEPTED)
def test_quantities_that_can_be_read(bare_cluster: Cluster, quantity: Any, value: str) -> None:
    assert answer(bare_cluster, QUOTAS, quota(quantity)) == (422 if str(value).startswith("-") else 201)


@pytest.mark.parametrize("quantity", [row for row in REFUSED if not is_infinite(row.values[0])])
def test_quantities_that_cannot_be_read(bare_cluster: Cluster, quantity: Any) -> None:
    assert answer(bare_cluster, QUOTAS, quota(quantity)) == 400


@pytest.mark.parametrize(("limits", "requests", "expectation"), RESOURCES)
def test_resources_of_a_container(bare_cluster: Cluster, limits: Any, requests: Any, expectation: Found) -> None:
    resources = {"limits": limits, "requests": requests}
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}}
    assert (answer(bare_cluster, PODS, body) == 201) == (expectation == [])
