"""Pods that the tests create."""

from typing import Any


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod of Bowline's scheduler."""
    containers = [{"name": "main", "image": "example.com/image"}]
    return {"metadata": {"name": name}, "spec": {"schedulerName": "kai-scheduler", "containers": containers, **spec}}
