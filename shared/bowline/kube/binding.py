"""Binds a pod to its node with a Binding: the single implementation, for every plugin that binds.

The Binding carries the pod's UID, so that it can never bind another pod of the same name, and all annotations, which
the API server merges into the pod in the same transaction. It is sent once: what follows a lost reply, the reconciler
decides. Another POST is harmless: a bound pod is answered 409.

Its annotations and labels are validated before it is sent: the API server stores invalid ones and then rejects every
later update of the pod.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.api.rule import DenialCause, Rule
from bowline.kube.errors import ApiError, Conflict, InfrastructureError, Invalid, NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import PODS

ANNOTATION_KEY: Final = Rule("binding/annotation-key", "the key of an annotation of a Binding is no qualified name")
ANNOTATION_SIZE: Final = Rule(
    "binding/annotation-size",
    "the annotations of a pod and its Binding together are larger than 256 KiB",
    cause=DenialCause.TOO_LONG,
)
LABEL_KEY: Final = Rule("binding/label-key", "the key of a label of a Binding is no qualified name")
LABEL_VALUE: Final = Rule("binding/label-value", "the value of a label of a Binding is no label value")

RULES: Final = (
    ANNOTATION_KEY,
    ANNOTATION_SIZE,
    LABEL_KEY,
    LABEL_VALUE,
)


# The API server's limit on keys and values together.
MAX_ANNOTATION_BYTES = 256 * 1024
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_QUALIFIED = (
    "must be a qualified name: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at either end, "
    "after an optional DNS name and '/'"
)


class BindOutcome(StrEnum):
    """The result of posting a Binding."""

    BOUND = "Bound"  # by this call
    NOT_FOUND = "NotFound"  # the pod does not exist
    CONFLICT = "Conflict"  # already bound, gated, deleting, or another pod of that name: a live read decides
    REFUSED = "Refused"  # rejected, without any effect
    UNKNOWN = "Unknown"  # may have been applied, or may still be


@dataclass(frozen=True, slots=True)
class BindingResult:
    """The outcome, and the API server's message. ``retry_after``: with UNKNOWN, the delay that it asks for."""

    outcome: BindOutcome
    message: str = ""
    code: int = 0
    retry_after: timedelta | None = None


def annotation_errors(annotations: Mapping[str, str], present: Mapping[str, str]) -> list[FieldError]:
    """Return why the API server would reject later updates of the pod. ``present``: its existing annotations."""
    errors = []
    for key in annotations:
        if not _is_qualified(key):
            message = f"{_QUALIFIED}; rename the annotation"
            errors.append(FieldError(ANNOTATION_KEY, annotation_path(key), annotations[key], message))
    size = _size({**present, **annotations})
    if size > MAX_ANNOTATION_BYTES:
        message = (
            f"bytes in all annotations, those of the Binding included, must be at most {MAX_ANNOTATION_BYTES}; "
            "shorten them"
        )
        errors.append(FieldError(ANNOTATION_SIZE, "metadata.annotations", size, message))
    return errors


def addition_errors(annotations: Mapping[str, str], present: Mapping[str, str]) -> list[FieldError]:
    """Return what is wrong with one plugin's annotations; that the pod's own, where they are larger, leave no room is
    not its mistake.
    """
    return annotation_errors(annotations, present if _size(annotations) > _size(present) else {})


def _size(annotations: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())


def label_errors(labels: Mapping[str, str]) -> list[FieldError]:
    """Return why the API server would reject later updates of a pod with these labels."""
    errors = []
    for key, value in labels.items():
        if not _is_qualified(key):
            errors.append(FieldError(LABEL_KEY, f"metadata.labels[{key}]", value, f"{_QUALIFIED}; rename it"))
        if value and (len(value) > 63 or not _NAME.fullmatch(value)):
            message = (
                "must be at most 63 letters, digits, '-', '_' and '.', with a letter or digit at either end; use an "
                "annotation for other text"
            )
            errors.append(FieldError(LABEL_VALUE, f"metadata.labels[{key}]", value, message))
    return errors


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    # As the API server validates: uppercase letters are allowed in a prefix.
    prefix_ok = not slash or (len(prefix) <= 253 and re.fullmatch(names.DNS_SUBDOMAIN, prefix.lower()))
    return bool(prefix_ok and len(name) <= 63 and _NAME.fullmatch(name))


async def post_binding(
    client: ObjectClient,
    pod_key: ObjectKey,
    pod_uid: ObjectUID,
    node: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> BindingResult:
    """Bind the pod: POST its Binding.

    Raises InfrastructureError only if no write can have been applied, for example after a failure of admission, which
    precedes the write.
    """
    if not node:
        # The API server would answer 500.
        return BindingResult(BindOutcome.REFUSED, "the node's name is empty; name a node")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod_key.name,
            "namespace": pod_key.namespace,
            "uid": pod_uid,
            "annotations": annotations,
            **({"labels": labels} if labels else {}),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    try:
        # No timeout beside the client's: time in its queues is time in which nothing has been sent.
        await client.create(PODS, pod_key.namespace, body, name=pod_key.name, subresource="binding")
    except ApiError as error:
        return BindingResult(_outcome_of(error), error.message, error.code)
    except InfrastructureError as error:
        if not error.may_have_been_applied:
            raise
        return BindingResult(BindOutcome.UNKNOWN, str(error), error.code, error.retry_after)
    return BindingResult(BindOutcome.BOUND, code=201)


def _outcome_of(error: ApiError) -> BindOutcome:
    """Return the outcome of the API server's decision."""
    if isinstance(error, NotFound):
        return BindOutcome.NOT_FOUND
    is_other_pod = isinstance(error, Invalid) and any(cause.field == "metadata.uid" for cause in error.causes)
    return BindOutcome.CONFLICT if is_other_pod or isinstance(error, Conflict) else BindOutcome.REFUSED
