"""Binding a pod to its node: the one way, for every plugin that does it.

The Binding carries the pod's UID, so that it can never reach another pod of the same name, and all annotations, which
the API server merges into the pod in the same transaction. A second POST after an unknown outcome is harmless: a pod
that is bound answers 409.

A Binding never carries labels, and its annotations are checked before it is sent: the API server stores what it then
refuses at every later update of the pod, for ever.
"""

import asyncio
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from shared.api.field_error import FieldError, annotation_path
from shared.api.meta import ObjectKey, ObjectUID
from shared.kube.client import KubeClient
from shared.kube.errors import ApiError, Cause, Conflict, InfrastructureError, Invalid, NotFound
from shared.kube.resources import PODS
from shared.runtime.backoff import full_jitter

# The API server's limit on keys and values together.
MAX_ANNOTATION_BYTES = 256 * 1024
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

_REPEAT_BASE = timedelta(milliseconds=100)
_REPEAT_CAP = timedelta(seconds=5)


class BindOutcome(StrEnum):
    """What a Binding has come to."""

    BOUND = "Bound"  # by this call
    GONE = "Gone"  # there is no such pod
    LOOK = "Look"  # bound already, gated, deleting, or another pod under the name: GET it and see
    REFUSED = "Refused"  # and nothing was done
    UNKNOWN = "Unknown"  # it may be bound, or still become so


@dataclass(frozen=True, slots=True)
class BindingResult:
    """The outcome, and what the API server said. ``last_unknown``: when last a POST went unanswered."""

    outcome: BindOutcome
    message: str = ""
    code: int = 0
    causes: tuple[Cause, ...] = ()
    last_unknown: datetime | None = None


def annotation_faults(annotations: Mapping[str, str], present: Mapping[str, str]) -> list[FieldError]:
    """Return why the pod could never be updated again with these annotations. ``present``: those it has already."""
    faults = []
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        # As the API server judges it: a prefix may be written in capitals.
        prefix_ok = not slash or (len(prefix) <= 253 and _PREFIX.fullmatch(prefix.lower()))
        if not prefix_ok or len(name) > 63 or not _NAME.fullmatch(name):
            message = (
                "must be a qualified name: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at "
                "either end, after an optional DNS name and '/'; rename the annotation"
            )
            faults.append(FieldError("binding/annotation-key", annotation_path(key), annotations[key], message))
    together = {**present, **annotations}
    size = sum(len(key.encode()) + len(value.encode()) for key, value in together.items())
    if size > MAX_ANNOTATION_BYTES:
        message = (
            f"bytes in all annotations, those of the Binding included, must be at most {MAX_ANNOTATION_BYTES}; "
            "shorten those of the pod"
        )
        faults.append(FieldError("binding/annotation-size", "metadata.annotations", size, message))
    return faults


async def post_binding(
    client: KubeClient,
    pod_key: ObjectKey,
    pod_uid: ObjectUID,
    node: str,
    annotations: Mapping[str, str],
    *,
    budget: timedelta = timedelta(seconds=60),
) -> BindingResult:
    """Bind the pod, repeating the POST while its outcome is unknown, for as long as ``budget``.

    Raises InfrastructureError, but only if nothing can have been done. A REFUSED after an unknown POST is UNKNOWN:
    the refusal says nothing about the POST before.
    """
    if not node:
        # The API server answers 500, as if it were its own fault.
        return BindingResult(BindOutcome.REFUSED, "the node's name is empty; name a node")
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod_key.name,
            "namespace": pod_key.namespace,
            "uid": pod_uid,
            "annotations": annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    loop = asyncio.get_running_loop()
    ends = loop.time() + budget.total_seconds()
    last_unknown: datetime | None = None
    attempt = 0
    while True:
        attempt += 1
        wait = full_jitter(attempt, _REPEAT_BASE, _REPEAT_CAP, random.random())  # noqa: S311 - spreads load
        try:
            async with asyncio.timeout_at(ends):
                await client.create(PODS, pod_key.namespace, body, name=pod_key.name, subresource="binding")
            return BindingResult(BindOutcome.BOUND, code=201, last_unknown=last_unknown)
        except ApiError as error:
            return judged(error, last_unknown)
        except (InfrastructureError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or error.may_be_done:
                last_unknown = client.clock.now()
            elif last_unknown is None:
                raise
            else:
                wait = max(wait, error.retry_after or wait)
            if loop.time() + wait.total_seconds() >= ends:
                said = str(error) or "no answer in time"
                code = 0 if isinstance(error, TimeoutError) else error.code
                return BindingResult(BindOutcome.UNKNOWN, said, code, last_unknown=last_unknown)
        await asyncio.sleep(wait.total_seconds())


def judged(error: ApiError, last_unknown: datetime | None) -> BindingResult:
    """Return what the API server's considered answer means, given when a POST before it went unanswered."""
    outcome = BindOutcome.REFUSED if last_unknown is None else BindOutcome.UNKNOWN
    if isinstance(error, NotFound) and error.reason == "NotFound":
        outcome = BindOutcome.GONE
    elif isinstance(error, Conflict) or (
        isinstance(error, Invalid) and any(cause.field == "metadata.uid" for cause in error.causes)
    ):
        outcome = BindOutcome.LOOK
    return BindingResult(outcome, error.message, error.code, error.causes, last_unknown)
