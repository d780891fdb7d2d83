"""Scenarios of pods that built-in plugins prepare: volumes, devices, shares of a GPU, each bound and released.

Beside them run kube-controller-manager's controllers, kwok's agents and, in ``play``, users, schedulers and a
provisioner. A group and a volume are named after the run's namespace, so that runs do not affect each other.
"""

from collections.abc import Callable
from typing import Any

from bowline.framework.interface.mutable import MutablePod
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.testing.builders import pod
from tests.faults.plugin_objects import GROUPS, group_name, read_objects
from tests.faults.scenarios import Scenario, in_phase, make_pod, make_request, post_pod
from tests.live import FLAKY, LiveCluster
from tests.plugins.claims import API, claim_decisions, extended_decision, publish, template
from tests.plugins.sharing import HALF
from tests.plugins.storage import PROVISIONER, Storage, mounts

GIVEN_UP = {FLAKY: "99"}
_EXTENDED = "gpu.example.com/gpu"


# --- volumes ---


def _takes_a_volume(live: LiveCluster) -> None:
    storage = Storage(live)
    storage.make_class()
    storage.make_volume("local")
    storage.make_claim()
    make_request(live, make_pod(live, volumes=mounts("data")))


def _has_a_volume_made(live: LiveCluster) -> None:
    storage = Storage(live)
    storage.make_class(PROVISIONER)
    storage.make_claim()
    make_request(live, make_pod(live, volumes=mounts("data")))
    storage.provision()


def _bound_with_its_volume(live: LiveCluster) -> bool:
    objects = read_objects(live)
    everything = [*objects.volume_claims, *objects.volumes]
    return in_phase("Succeeded")(live) and all(item["status"]["phase"] == "Bound" for item in everything)


# --- devices ---


def _make_with_template(live: LiveCluster, *, given_up: bool = False) -> None:
    publish(live.cluster)
    live.cluster.api.post(f"{API}/namespaces/{live.namespace}/resourceclaimtemplates", template("tpl"))
    claims = [{"name": "dev", "resourceClaimTemplateName": "tpl"}]
    uid = make_pod(live, GIVEN_UP if given_up else None, resourceClaims=claims)
    make_request(live, uid, **claim_decisions("d0"), **_once(given_up=given_up))


def _make_with_extended(live: LiveCluster, *, given_up: bool = False) -> None:
    publish(live.cluster)
    limits = {"limits": {_EXTENDED: "1"}}
    container = {"name": "main", "image": "registry.example/app:1", "resources": limits}
    uid = make_pod(live, GIVEN_UP if given_up else None, containers=[container])
    make_request(live, uid, **extended_decision(_EXTENDED), **_once(given_up=given_up))


# --- shares of a GPU ---


def _make_share(live: LiveCluster, *groups: str, given_up: bool = False) -> None:
    body = share_body(live)
    body["metadata"]["annotations"] |= GIVEN_UP if given_up else {}
    make_request(
        live,
        post_share(live, body),
        receivedResourceType="Fraction",
        receivedGPU={"count": len(groups), "portion": "0.50"},
        selectedGPUGroups=[group_name(live, group) for group in groups],
        **_once(given_up=given_up),
    )


def share_body(live: LiveCluster, **spec: Any) -> dict[str, Any]:
    """Return the pod that requests half a GPU."""
    body = pod("pod", live.namespace, **{"runtimeClassName": "nvidia", **spec})
    body["metadata"]["annotations"] = dict(HALF)
    return body


def post_share(live: LiveCluster, body: dict[str, Any]) -> str:
    """Create a pod, prepared as the webhook prepares it, which does not run; returns its UID."""
    prepare(MutablePod(body), live.namespace)
    return post_pod(live, body)


def _once(*, given_up: bool) -> dict[str, Any]:
    return {"backoffLimit": 0} if given_up else {}


def _given_up(live: LiveCluster) -> bool:
    return in_phase("Failed")(live) and not _leftovers(live)


def _leftovers(live: LiveCluster) -> list[str]:
    objects = read_objects(live)
    return [leftover for pod in objects.pods for leftover in objects.held_by(pod)]


def _gives_up(name: str, play: Callable[..., None], *groups: str) -> Scenario:
    """The scenario of a pod that is prepared and not bound."""

    def play_given_up(live: LiveCluster) -> None:
        play(live, *groups, given_up=True)

    return Scenario(name, play_given_up, _given_up, "BindingFailed", reason="BackoffLimitExceeded")


FRACTION = Scenario("fraction", lambda live: _make_share(live, "a"), in_phase("Succeeded"), "Bound")
DEVICE = Scenario("device", _make_with_template, in_phase("Succeeded"), "Bound")
VOLUME = Scenario("volume", _takes_a_volume, _bound_with_its_volume, "Bound")
PLUGIN_SCENARIOS = (
    VOLUME,
    Scenario("volume-made", _has_a_volume_made, _bound_with_its_volume, "Bound"),
    DEVICE,
    _gives_up("device-back", _make_with_template),
    _gives_up("extended-back", _make_with_extended),
    FRACTION,
    _gives_up("fraction-back", _make_share, *GROUPS),
)
