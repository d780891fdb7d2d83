"""Which tainted devices end a decision."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bowline.shared.api.meta import key_of
from bowline.shared.framework.status import Reason, Suggestion
from bowline.shared.kube.reflector import Reflector
from bowline.shared.kube.store import Store
from bowline.shared.plugins.dynamic_resources.device_taints import NEW, STORED, DeviceTaints, transform_slice

BROKEN = {"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}


def resource_slice(**taints: list[dict[str, str]]) -> dict[str, Any]:
    devices = [{"name": name, "attributes": {"x": {"int": 1}}, "taints": of} for name, of in taints.items()]
    metadata = {"name": "s", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
    return {"metadata": metadata, "spec": {"driver": "d.example", "pool": {"name": "n"}, "devices": devices}}


def result(device: str = "d0", **more: Any) -> dict[str, Any]:
    return {"devices": {"results": [{"request": "r", "driver": "d.example", "pool": "n", "device": device, **more}]}}


def taints(**of: list[dict[str, str]]) -> DeviceTaints:
    store = Store()
    cached_slice = transform_slice(resource_slice(**of))
    if cached_slice is not None:
        store.put(key_of(cached_slice), cached_slice)
    watched = DeviceTaints()
    watched.attach(cast(Reflector, SimpleNamespace(store=store)))
    return watched


@pytest.mark.parametrize(
    ("taint", "allocation", "effects", "is_conflict"),
    [
        pytest.param(BROKEN, result(), NEW, True, id="tainted since the decision"),
        pytest.param(BROKEN, result(), STORED, False, id="an allocation that is in use"),
        pytest.param({**BROKEN, "effect": "NoExecute"}, result(), STORED, True, id="its pods are evicted"),
        pytest.param({**BROKEN, "effect": "None"}, result(), NEW, False, id="information only"),
        pytest.param(BROKEN, result("d1"), NEW, False, id="another device"),
        pytest.param(BROKEN, result(driver="other.example"), NEW, False, id="another driver"),
        pytest.param(BROKEN, result(pool="other"), NEW, False, id="another pool"),
        pytest.param(
            BROKEN,
            result(tolerations=[{"key": "example.com/broken", "operator": "Exists"}]),
            NEW,
            False,
            id="tolerated by the request",
        ),
    ],
)
def test_a_tainted_device(
    taint: dict[str, str], allocation: dict[str, Any], effects: tuple[str, ...], is_conflict: bool
) -> None:
    status = taints(d0=[taint]).conflict("claim c", allocation, effects)
    assert (status is not None) is is_conflict
    if status is not None:
        assert (status.reason, status.suggestion) == (Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
        assert f"has the taint example.com/broken=yes:{taint['effect']}" in status.message


def test_only_slices_with_tainted_devices_are_cached() -> None:
    assert transform_slice(resource_slice(d0=[], d1=[])) is None
    cached_slice = transform_slice(resource_slice(d0=[], d1=[BROKEN]))
    assert cached_slice is not None
    assert cached_slice["taints"] == {"d1": [BROKEN]}
    assert "labels" not in cached_slice["metadata"]
    assert taints(d0=[]).conflict("claim c", result(), NEW) is None
    assert DeviceTaints().conflict("claim c", result(), NEW) is None, "before the watch is attached"
