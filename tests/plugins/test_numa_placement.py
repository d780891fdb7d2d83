"""The predicted zones on a bound pod, and the calls for it."""

from bowline.api import names
from tests.audit import PLAIN_BIND, writes_about
from tests.live import Live

ZONES = [{"zone": "0", "amount": {"cpu": "4", names.RESOURCE_GPU: 1}}, {"zone": "1", "amount": {"memory": "1.50Gi"}}]


def test_a_bound_pod_has_its_predicted_zones_and_the_bind_costs_no_more(strict_pair: Live) -> None:
    strict_pair.create_pod()
    strict_pair.request_bind(predictedNUMAZones=ZONES)
    strict_pair.phase("pod", "Succeeded")
    strict_pair.event("pod", "Bound")
    assert strict_pair.pod()["metadata"]["annotations"][names.NUMA_PLACEMENT_PREDICTED] == (
        '[{"zone":"0","amount":{"cpu":"4","nvidia.com/gpu":1}},{"zone":"1","amount":{"memory":"1.50Gi"}}]'
    )
    assert writes_about(strict_pair, "bowline-reconciler", PLAIN_BIND) == PLAIN_BIND


def test_without_zones_there_is_no_annotation(strict_pair: Live) -> None:
    strict_pair.create_pod()
    strict_pair.request_bind()
    strict_pair.phase("pod", "Succeeded")
    assert names.NUMA_PLACEMENT_PREDICTED not in strict_pair.pod()["metadata"]["annotations"]
