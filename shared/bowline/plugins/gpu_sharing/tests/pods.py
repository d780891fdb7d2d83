"""Small pods, reservations and claims for these tests."""

from typing import Any

from bowline.api import names
from bowline.api.meta import ObjectKey, ObjectUID, ResourceVersion
from bowline.plugins.gpu_sharing.reservation import DeviceRequest, Reservation, User, reservation_name

Json = dict[str, Any]
HALF = {names.GPU_FRACTION: "0.5"}


def sharing_pod(annotations: Json | None = None, metadata: Json | None = None, **spec: Any) -> Json:
    """Return a pod that requests half a GPU."""
    return {
        "metadata": {"name": "half", "annotations": dict(HALF if annotations is None else annotations)}
        | (metadata or {}),
        "spec": {"schedulerName": "example-scheduler", "containers": [{"name": "main"}], **spec},
    }


def reservation(node: str = "n1", group: str = "g1", **fields: Any) -> Reservation:
    """Return a running reservation pod that has not reported its device."""
    defaults: Json = {
        "key": ObjectKey("res", reservation_name(node, group)),
        "uid": ObjectUID("r1"),
        "version": ResourceVersion("1"),
        "node": node,
        "group": group,
        "device": "",
        "deleting": False,
        "has_ended": False,
        "status_reason": "",
    }
    return Reservation(**defaults | fields)


def claim(request: str = "a", node: str = "n1", group: str = "g1") -> DeviceRequest:
    """Return a request's claim."""
    return DeviceRequest(ObjectKey("ns", request), ObjectKey("ns", request), node, group)


def user(name: str = "a", node: str = "n1", *, has_ended: bool = False, deleting: bool = False) -> User:
    """Return a pod that is labelled with the group."""
    return User(ObjectKey("ns", name), ObjectUID(f"uid-{name}"), node, has_ended, deleting)
