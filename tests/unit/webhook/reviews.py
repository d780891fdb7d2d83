"""AdmissionReviews as an API server sends them, and the responses that it gets, for the webhook's tests."""

from typing import Any

import orjson

from bowline.framework.admission import AdmissionChain
from bowline_webhook.hooks import Hook
from bowline_webhook.review import MAX_ANSWER, decode_review, encode_answer, review_object


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


def response_of(hook: Hook, document: Any, chain: AdmissionChain) -> dict[str, Any]:
    """Return the response that the listener would send to the review."""
    incoming = decode_review(encode(document))
    body = encode_answer(incoming, review_object(hook, incoming, chain))
    assert len(body) <= MAX_ANSWER
    answer = orjson.loads(body)
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", document["apiVersion"])
    response: dict[str, Any] = answer["response"]
    return response


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
