"""Raw objects for tests: complete enough for the API server, adjustable by keyword.

A builder returns a new dictionary each time, which the caller may modify.
"""

from typing import Any

from bowline.shared.api import names


def pod(name: str = "pod", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """Return an unbound pod of scheduler ``bowline`` with one container. ``spec`` overrides fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulerName": "bowline",
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
            # Bound pods must run on kwok's tainted and untainted nodes.
            "tolerations": [{"operator": "Exists"}],
            **spec,
        },
    }


def bind_request(
    name: str = "pod", node: str = "node-0", namespace: str = "default", uid: str = "", **spec: Any
) -> dict[str, Any]:
    """Return a Regular BindRequest for the pod of that name. With ``uid`` it is owned by that pod."""
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}] if uid else []
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace, **({"ownerReferences": owner} if owner else {})},
        "spec": {
            "podName": name,
            "selectedNode": node,
            "receivedResourceType": "Regular",
            "receivedGPU": {"portion": "0.00"},
            **spec,
        },
    }


def stored(obj: dict[str, Any], uid: str = "uid-1", version: str = "1", **metadata: Any) -> dict[str, Any]:
    """Return the object as the API server would return it: with UID, resourceVersion and creation time."""
    return {
        **obj,
        "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": 1,
            **obj["metadata"],
            "uid": uid,
            "resourceVersion": version,
            **metadata,
        },
    }
