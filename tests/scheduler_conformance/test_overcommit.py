"""Two schedulers decide for the same free GPUs, neither sees the decision of the other: the pair binds both pods.

With the plugin node_fit it binds one (`tests/plugins/test_node_fit.py`). docs/write-a-scheduler.md states both.
"""

from bowline.api import names
from bowline.conformance.case import OTHER_NODE
from bowline.conformance.scheduler import OTHER, SchedulerCluster
from bowline.testing.builders import bind_request, pod
from tests.pairs import own_namespace
from tests.plugins.leftovers import clean_up


def test_without_node_fit_the_second_decision_is_carried_out_as_well(binder: SchedulerCluster) -> None:
    with own_namespace(binder.cluster, binder.pair) as live:
        for name, scheduler in (("ours", "example-scheduler"), ("theirs", OTHER)):
            body = pod(name, live.namespace, schedulerName=scheduler)
            body["spec"]["containers"][0]["resources"] = {"limits": {names.RESOURCE_GPU: "8"}}
            live.create(body)
        # Both are decided before one is carried out.
        assert live.pair.reconcilers[0].stop()
        for name in ("ours", "theirs"):
            uid = live.pod(name)["metadata"]["uid"]
            gpus = {"count": 8, "portion": "1.00"}
            live.create(bind_request(name, OTHER_NODE, live.namespace, uid, receivedGPU=gpus))
        live.pair.launch_reconciler().wait_ready()
        for name in ("ours", "theirs"):
            live.phase(name, "Succeeded")
            assert live.pod(name)["spec"]["nodeName"] == OTHER_NODE
        clean_up(live)
