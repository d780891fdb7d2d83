"""The fields that kube-scheduler and Bowline set on PVs and PVCs: the same, with the same controller.

The real kube-scheduler schedules and binds one pod; the pair executes a decision for another that is equal except for
its name. Runs where kube-scheduler is available.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from tests.live import Live
from tests.plugins.kube_scheduler import bound, needs_kube_scheduler
from tests.plugins.storage import PROVISIONER, Storage

pytestmark = needs_kube_scheduler

# Fields that differ between objects, whichever scheduler binds them.
_OWN = ("name", "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


@pytest.fixture(scope="module")
def storage(beside_kube_scheduler: tuple[Cluster, Pair]) -> Storage:
    """A namespace where both schedulers can run."""
    cluster, pair = beside_kube_scheduler
    cluster.make_namespace("compared")
    return Storage(Live(cluster, "compared", pair))


def local(storage: Storage, name: str) -> None:
    storage.make_volume(name)
    storage.make_claim(name)


def local_kept_by_hand(storage: Storage, name: str) -> None:
    storage.make_volume(name, claimRef={"namespace": "compared", "name": name})
    storage.make_claim(name)


def create_volume(storage: Storage, name: str) -> None:
    storage.make_claim(name)


def left(storage: Storage, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """PVC and PV in their final state, without the fields that are each object's own."""
    live = storage.live
    live.until(f"claim {name} is bound", lambda: storage.claim(name)["status"].get("phase") == "Bound")
    path = f"/api/v1/persistentvolumes/{storage.claim(name)['spec']['volumeName']}"
    live.until("its volume is bound", lambda: live.cluster.api.get(path)["status"]["phase"] == "Bound")
    claim, volume = storage.claim(name), live.cluster.api.get(path)
    assert volume["spec"]["claimRef"].pop("uid") == claim["metadata"]["uid"]
    assert volume["spec"]["claimRef"].pop("resourceVersion")
    claim["metadata"]["annotations"].pop(names.PREPARED_FOR, None)  # the record of Bowline's request
    for obj in (claim, volume):
        for key in _OWN:
            obj["metadata"].pop(key, None)
    volume["status"].pop("lastPhaseTransitionTime", None)
    # Since 1.37 a controller reports there whether a pod uses the claim, some time after the bind.
    claim["status"].pop("conditions", None)
    volume["spec"].pop("csi", None)
    return _rename(claim, name), _rename(volume, name)


def _rename(value: Any, name: str) -> Any:
    """The same object, called ``it``."""
    if isinstance(value, dict):
        return {key: _rename(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rename(inner, name) for inner in value]
    return value.replace(name, "it") if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("provisioner", "make"),
    [
        pytest.param("kubernetes.io/no-provisioner", local, id="a free local volume"),
        pytest.param("kubernetes.io/no-provisioner", local_kept_by_hand, id="a volume kept for the claim by hand"),
        pytest.param(PROVISIONER, create_volume, id="a volume that is made"),
    ],
)
def test_both_schedulers_set_the_same_fields(
    storage: Storage, provisioner: str, make: Callable[[Storage, str], None]
) -> None:
    live = storage.live
    storage.make_class(provisioner)
    try:
        word = make.__name__.replace("_", "-")
        for name, scheduler in ((f"theirs-{word}", "default-scheduler"), (f"ours-{word}", "example-scheduler")):
            make(storage, name)
            storage.make_pod(name, name, schedulerName=scheduler)
            if scheduler == "example-scheduler":
                live.request_bind(name)
            if provisioner == PROVISIONER:
                storage.provision(name)
            assert bound(live, name)["spec"]["nodeName"] == "gpu-node-0"
        assert left(storage, f"ours-{word}") == left(storage, f"theirs-{word}")
    finally:
        storage.clean()
