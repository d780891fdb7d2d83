"""The actions of users and schedulers around one pod with a share of a GPU, and the end of each scenario.

``play`` acts from outside and never checks whether the reconciler runs. ``ended`` defines when the undisturbed run is
over; its final state then is the expected state of every disturbed run. Beside it run kube-controller-manager's
controllers and kwok's agents. Groups are named after the run's namespace, so that runs do not affect each other.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bowline.framework.interface.mutable import MutablePod
from bowline.localcluster.errors import LocalApiError
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.testing.builders import bind_request, pod
from tests.faults.stored import GROUPS, group_name, held_shares
from tests.live import FLAKY, LiveCluster
from tests.plugins.sharing import HALF

NODE = "gpu-node-0"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A short scenario. ``last_event``: the last event about the pod; ``reason``: of the request's status in the end,
    if the request fails."""

    name: str
    play: Callable[[LiveCluster], None]
    ended: Callable[[LiveCluster], bool]
    last_event: str
    reason: str = ""


def remove(live: LiveCluster, path: str) -> None:
    """Delete an object, if it exists."""
    try:
        live.cluster.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    except LocalApiError as error:
        if error.status != 404:
            raise


def _make_share(live: LiveCluster, *groups: str, given_up: bool = False) -> None:
    """Create a pod, prepared as the webhook prepares it, and its request."""
    body = pod("pod", live.namespace, runtimeClassName="nvidia")
    body["metadata"]["annotations"] = {**HALF, **({FLAKY: "99"} if given_up else {})}
    prepare(MutablePod(body), live.namespace)
    uid = str(live.cluster.api.post(f"/api/v1/namespaces/{live.namespace}/pods", body)["metadata"]["uid"])
    request = bind_request(
        "pod",
        NODE,
        live.namespace,
        uid,
        podUID=uid,
        receivedResourceType="Fraction",
        receivedGPU={"count": len(groups), "portion": "0.50"},
        selectedGPUGroups=[group_name(live, group) for group in groups],
        **({"backoffLimit": 0} if given_up else {}),
    )
    live.cluster.api.post(live.request_path().rpartition("/")[0], request)


def _has_ended(live: LiveCluster, phase: str) -> bool:
    """Return whether the request has this phase, and no finalizer is left."""
    request = live.request()
    return (request.get("status") or {}).get("phase") == phase and not request["metadata"].get("finalizers")


FRACTION = Scenario(
    "fraction", lambda live: _make_share(live, "a"), lambda live: _has_ended(live, "Succeeded"), "Bound"
)
FRACTION_BACK = Scenario(
    "fraction-back",
    lambda live: _make_share(live, *GROUPS, given_up=True),
    lambda live: _has_ended(live, "Failed") and not held_shares(live),
    "BindingFailed",
    "BackoffLimitExceeded",
)
