"""Scenarios of pods that built-in plugins prepare: volumes, devices, shares of a GPU, each bound and released.

Beside them run kube-controller-manager's controllers, kwok's agents and, in ``play``, users, schedulers and a
provisioner. A group and a volume are named after the run's namespace, so that runs do not affect each other.
"""

from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.framework.mutable import MutablePod
from bowline.plugins.gpu_sharing.admission import prepare
from bowline.plugins.gpu_sharing.reservation import DeviceRequest
from bowline.plugins.gpu_sharing.reservation_pod import ReservationSpec, reservation_object
from bowline.testing.builders import pod
from tests.faults.plugin_objects import GROUPS, read_objects
from tests.faults.scenarios import NODE, Scenario, in_phase, make_pod, make_request, post_pod, remove
from tests.live import FLAKY, LiveCluster
from tests.plugins.claims import API, claim_decisions, extended_decision, publish, template
from tests.plugins.sharing import HALF, RESERVATIONS, SILENT, device_of
from tests.plugins.storage import PROVISIONER, Storage, mounts

GIVEN_UP = {FLAKY: "99"}
# Bound before the scenario begins.
HOLDER = "holder"
_EXTENDED = "gpu.example.com/gpu"
# Set by the volume controller.
_PROVISIONER_OF = "volume.kubernetes.io/storage-provisioner"


# --- volumes ---


def _takes_a_volume(live: LiveCluster) -> None:
    storage = Storage(live)
    storage.make_class()
    storage.make_volume("local")
    storage.make_claim()
    make_request(live, make_pod(live, volumes=mounts("data")))


def _has_a_volume_made(live: LiveCluster) -> None:
    storage = _ask_for_a_volume(live)
    storage.provision()


def _is_refused_a_volume(live: LiveCluster) -> None:
    storage = _ask_for_a_volume(live)

    def is_believed() -> bool:
        # Repeatedly: a new leader does not know what was reported to its predecessor. A provisioner acts on claims
        # that the volume controller has annotated with its name.
        if {names.SELECTED_NODE, _PROVISIONER_OF}.issubset(storage.claim()["metadata"].get("annotations") or {}):
            storage.refuse()
        return in_phase("Failed")(live)

    live.until("the provisioner has been believed", is_believed)


def _ask_for_a_volume(live: LiveCluster) -> Storage:
    storage = Storage(live)
    storage.make_class(PROVISIONER)
    storage.make_claim()
    make_request(live, make_pod(live, volumes=mounts("data")))
    return storage


def _bound_with_its_volume(live: LiveCluster) -> bool:
    objects = read_objects(live)
    everything = [*objects.volume_claims, *objects.volumes]
    return in_phase("Succeeded")(live) and all(item["status"]["phase"] == "Bound" for item in everything)


# --- devices ---


def _takes_a_device(live: LiveCluster) -> None:
    _make_with_template(live)


def _gives_a_device_back(live: LiveCluster) -> None:
    _make_with_template(live, given_up=True)


def _make_with_template(live: LiveCluster, *, given_up: bool = False) -> None:
    publish(live.cluster)
    live.cluster.api.post(f"{API}/namespaces/{live.namespace}/resourceclaimtemplates", template("tpl"))
    claims = [{"name": "dev", "resourceClaimTemplateName": "tpl"}]
    uid = make_pod(live, GIVEN_UP if given_up else None, resourceClaims=claims)
    make_request(live, uid, **claim_decisions("d0"), **_once(given_up=given_up))


def _takes_an_extended_resource(live: LiveCluster) -> None:
    _make_with_extended(live)


def _gives_an_extended_resource_back(live: LiveCluster) -> None:
    _make_with_extended(live, given_up=True)


def _make_with_extended(live: LiveCluster, *, given_up: bool = False) -> None:
    publish(live.cluster)
    limits = {"limits": {_EXTENDED: "1"}}
    container = {"name": "main", "image": "registry.example/app:1", "resources": limits}
    uid = make_pod(live, GIVEN_UP if given_up else None, containers=[container])
    make_request(live, uid, **extended_decision(_EXTENDED), **_once(given_up=given_up))


# --- shares of a GPU ---


def make_share(live: LiveCluster, *groups: str, admitted: bool = False, given_up: bool = False) -> None:
    """Create a sharing pod and its request; ``admitted``: the webhook prepares them, else the test."""
    body = share_body(live)
    body["metadata"]["annotations"] |= GIVEN_UP if given_up else {}
    ask_for_share(live, post_share(live, body, admitted=admitted), *groups, given_up=given_up)


def share_body(live: LiveCluster, **spec: Any) -> dict[str, Any]:
    """Return the pod that requests half a GPU."""
    body = pod("pod", live.namespace, **spec)
    body["metadata"]["annotations"] = dict(HALF)
    return body


def post_share(live: LiveCluster, body: dict[str, Any], *, admitted: bool = False) -> str:
    """Create a pod, prepared as the webhook prepares it where none runs; returns its UID."""
    if not admitted:
        prepare(MutablePod(body), live.namespace)
    return post_pod(live, body)


def ask_for_share(
    live: LiveCluster,
    uid: str,
    *groups: str,
    given_up: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Create the sharing pod's request."""
    make_request(
        live,
        uid,
        annotations,
        receivedResourceType="Fraction",
        receivedGPU={"count": len(groups), "portion": "0.50"},
        selectedGPUGroups=[group_name(live, group) for group in groups],
        **_once(given_up=given_up),
    )


def group_name(live: LiveCluster, group: str) -> str:
    """Return the group of this run."""
    return f"{live.namespace}-{group}"


def _shares_a_fresh_device(live: LiveCluster) -> None:
    make_share(live, "a")


def _joins_a_device(live: LiveCluster) -> None:
    group = group_name(live, "a")
    # Device first, then the pod that uses it, as in a bind: used and unreserved, the device would be recovered.
    claim = DeviceRequest(
        ObjectKey(live.namespace, HOLDER), ObjectUID(""), ObjectKey(live.namespace, HOLDER), NODE, group
    )
    reservation_spec = ReservationSpec(names.RESERVATION_APP, "registry.example/agent:1", is_fake=lambda _: True)
    live.cluster.api.post(RESERVATIONS, reservation_object(claim, reservation_spec))
    live.until("its device is known", lambda: any(device_of(entry) for entry in read_objects(live).reservations))
    holder = pod(HOLDER, live.namespace, nodeName=NODE)
    holder["metadata"]["labels"] = {names.LABEL_GPU_GROUP: group, names.LABEL_GPU_SHARING: "true"}
    post_pod(live, holder)
    make_share(live, "a")


def _gives_two_devices_back(live: LiveCluster) -> None:
    make_share(live, *GROUPS, given_up=True)


def _is_withdrawn_while_agents_are_silent(live: LiveCluster) -> None:
    ask_for_share(live, post_share(live, share_body(live, tolerations=SILENT)), *GROUPS)
    live.until("devices are reserved", lambda: len(read_objects(live).reservations) == 2)
    remove(live, live.request_path())


def _once(*, given_up: bool) -> dict[str, Any]:
    return {"backoffLimit": 0} if given_up else {}


def _given_up(live: LiveCluster) -> bool:
    return in_phase("Failed")(live) and not _leftovers(live)


def _withdrawn(live: LiveCluster) -> bool:
    return live.not_found(live.request_path()) and not _leftovers(live)


def _leftovers(live: LiveCluster) -> list[str]:
    objects = read_objects(live)
    return [leftover for pod in objects.pods for leftover in objects.held_by(pod)]


FRACTION = Scenario("fraction", _shares_a_fresh_device, in_phase("Succeeded"), "Bound")
DEVICE = Scenario("device", _takes_a_device, in_phase("Succeeded"), "Bound")
DEVICE_BACK = Scenario(
    "device-back", _gives_a_device_back, _given_up, "BindingFailed", undoes=True, reason="BackoffLimitExceeded"
)
VOLUME = Scenario("volume", _takes_a_volume, _bound_with_its_volume, "Bound")
PLUGIN_SCENARIOS = (
    VOLUME,
    Scenario("volume-made", _has_a_volume_made, _bound_with_its_volume, "Bound"),
    Scenario("volume-refused", _is_refused_a_volume, in_phase("Failed"), "BindingFailed", reason="VolumeConflict"),
    DEVICE,
    DEVICE_BACK,
    Scenario("extended", _takes_an_extended_resource, in_phase("Succeeded"), "Bound"),
    Scenario(
        "extended-back",
        _gives_an_extended_resource_back,
        _given_up,
        "BindingFailed",
        undoes=True,
        reason="BackoffLimitExceeded",
    ),
    FRACTION,
    Scenario("fraction-joins", _joins_a_device, in_phase("Succeeded"), "Bound"),
    Scenario(
        "fraction-back",
        _gives_two_devices_back,
        _given_up,
        "BindingFailed",
        undoes=True,
        reason="BackoffLimitExceeded",
    ),
    Scenario("fraction-withdrawn", _is_withdrawn_while_agents_are_silent, _withdrawn, undoes=True),
)
