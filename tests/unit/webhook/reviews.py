"""AdmissionReviews as an API server sends them, for the webhook's tests."""

from typing import Any

import orjson


def review(
    raw: Any, old: Any = None, *, group: str = "", kind: Any = "Pod", uid: Any = "uid-1", **request: Any
) -> dict[str, Any]:
    """Return a review of the object; an old one makes it an UPDATE."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": {"group": group, "version": "v1", "kind": kind},
            "resource": {"group": group, "version": "v1", "resource": f"{str(kind).lower()}s"},
            "operation": "CREATE" if old is None else "UPDATE",
            "namespace": "team",
            "name": "p",
            "userInfo": {"username": "alice"},
            "object": raw,
            "oldObject": old,
            "dryRun": False,
            **request,
        },
    }


def encode(document: Any) -> bytes:
    """Return the document as a body."""
    return orjson.dumps(document)


def pod(annotations: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a pod of ours."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "creationTimestamp": None, "annotations": annotations},
        "spec": {"schedulerName": "example-scheduler", "containers": [{"name": "main", "image": "x"}], **spec},
    }


def deployment(annotations: Any = None, **metadata: Any) -> dict[str, Any]:
    """Return a Deployment of such pods."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "team", **metadata},
        "spec": {"replicas": 1, "template": {k: pod(annotations)[k] for k in ("metadata", "spec")}},
    }


def bind_request(**spec: Any) -> dict[str, Any]:
    """Return a BindRequest of a pod that owns it."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"}
    return {
        "apiVersion": "scheduling.run.ai/v1alpha2",
        "kind": "BindRequest",
        "metadata": {"name": "p", "namespace": "team", "ownerReferences": [owner]},
        "spec": {"podName": "p", "selectedNode": "n", **spec},
    }
