"""AdmissionReview: bytes to a verdict to bytes. Pure.

    body ─► decode_review ─► Review ─► judge (hook, chain) ─► Judgement ─► encode_answer ─► body

Works on plain dictionaries, so a field that this version does not know survives byte for byte: the answer carries
only recorded patch operations. Whatever is in the body, the caller gets an answer with its UID; only a body in which
no UID can be found has none (``MalformedReviewError``). Does no I/O, logs nothing, knows no HTTP.
"""

import base64
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Literal, assert_never, cast, get_args

import orjson

from shared.api import names
from shared.api.field_error import FieldError, shown
from shared.api.meta import Object, ObjectKey
from shared.framework.admission import ALLOWED, AdmissionChain, Judgement
from shared.framework.plugin import AdmissionInfo, Inventory
from webhook.workloads import judge_workload

API_VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
# The API server cuts longer ones, in the middle of a word.
MAX_WARNING: Final = 256


class Hook(StrEnum):
    """What a review is asked for; the value is the URL path."""

    MUTATE_PODS = "/mutate/pods"
    VALIDATE_PODS = "/validate/pods"
    MUTATE_BIND_REQUESTS = "/mutate/bindrequests"
    VALIDATE_BIND_REQUESTS = "/validate/bindrequests"
    VALIDATE_WORKLOADS = "/validate/workloads"
    MUTATE_EPHEMERAL_CONTAINERS = "/mutate/ephemeralcontainers"
    VALIDATE_EPHEMERAL_CONTAINERS = "/validate/ephemeralcontainers"
    VALIDATE_BINDINGS = "/validate/bindings"


class MalformedReviewError(Exception):
    """The body is no AdmissionReview that could be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Review:
    """One request. ``faults`` is what is wrong with the review itself; it is then refused, not judged."""

    api_version: str
    uid: str
    group: str = ""
    kind: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    operation: str = ""
    user: str = ""
    object: dict[str, Any] | None = None
    old: dict[str, Any] | None = None
    faults: tuple[FieldError, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the webhook knows of the cluster besides the object under review; nothing until it has looked."""

    inventory: Inventory | None = None
    requested: Container[ObjectKey] = frozenset()  # pods for which there is an unfinished BindRequest


NO_FACTS: Final = Facts()
Operation = Literal["CREATE", "UPDATE"]
_OPERATIONS: Final = frozenset(get_args(Operation))
# A pod's subresources for which there is a hook of its own.
_SUBRESOURCES: Final = {
    Hook.MUTATE_EPHEMERAL_CONTAINERS: "ephemeralcontainers",
    Hook.VALIDATE_EPHEMERAL_CONTAINERS: "ephemeralcontainers",
    Hook.VALIDATE_BINDINGS: "binding",
}
_FINAL: Final = (Hook.VALIDATE_PODS, Hook.VALIDATE_EPHEMERAL_CONTAINERS)


def decode_review(body: bytes) -> Review:
    """Decode a request's body. Raises MalformedReviewError if it has no UID to answer to."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedReviewError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise MalformedReviewError('the body is not an AdmissionReview: kind must be "AdmissionReview"')
    api_version = document.get("apiVersion")
    if api_version not in API_VERSIONS:
        raise MalformedReviewError(f"apiVersion must be {' or '.join(API_VERSIONS)}, not {shown(api_version)}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise MalformedReviewError("request must be an object")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise MalformedReviewError("request.uid must be a non-empty string")
    return _decode_request(api_version, uid, request)


def _decode_request(api_version: str, uid: str, request: dict[str, Any]) -> Review:
    faults: list[FieldError] = []

    def read(source: dict[str, Any], field: str, kind: type, path: str = "request") -> Any:
        value = source.get(field)
        if value is not None and not isinstance(value, kind):
            word = "a string" if kind is str else "an object"
            faults.append(FieldError("review/type", f"{path}.{field}", value, f"must be {word}"))
            value = None
        return value

    kind = read(request, "kind", dict) or {}
    user = read(request, "userInfo", dict) or {}
    review = Review(
        api_version=api_version,
        uid=uid,
        group=read(kind, "group", str, "request.kind") or "",
        kind=read(kind, "kind", str, "request.kind") or "",
        subresource=read(request, "subResource", str) or "",
        namespace=read(request, "namespace", str) or "",
        name=read(request, "name", str) or "",
        operation=read(request, "operation", str) or "",
        user=read(user, "username", str, "request.userInfo") or "",
        object=read(request, "object", dict),
        old=read(request, "oldObject", dict),
    )
    if review.operation in _OPERATIONS and not faults:
        needed = {"object": review.object} | ({"oldObject": review.old} if review.operation == "UPDATE" else {})
        faults += [
            FieldError("review/missing", f"request.{field}", None, f"is required for {review.operation}")
            for field, value in needed.items()
            if value is None
        ]
    return _with_faults(review, faults)


def _with_faults(review: Review, faults: Sequence[FieldError]) -> Review:
    return replace(review, faults=tuple(faults)) if faults else review


def judge(hook: Hook, review: Review, chain: AdmissionChain, facts: Facts = NO_FACTS) -> Judgement:
    """Judge the review's object. What the hook is not for is allowed, with a warning if it is of another kind.

    During a rollout an old replica may be sent what only a newer one knows: no reason to refuse an object.
    """
    if review.faults:
        return Judgement(review.faults)
    if review.operation not in _OPERATIONS or review.object is None:
        return ALLOWED
    if review.subresource and review.subresource != _SUBRESOURCES.get(hook):
        return ALLOWED
    if not _is_for(hook, review, chain):
        message = f"{hook} does not judge {review.kind or 'objects without a kind'}; see the webhook configuration"
        return Judgement(warnings=(FieldError("review/kind", "", review.kind, message, is_warning=True),))
    info = AdmissionInfo(
        operation=cast(Operation, review.operation),
        namespace=review.namespace,
        kind=review.kind,
        final=hook in _FINAL,
        inventory=facts.inventory,
        seed=review.uid,
        user=review.user,
        requested=facts.requested,
    )
    try:
        return _judge(hook, review, review.object, chain, info)
    except RecursionError:
        return Judgement((FieldError("review/depth", "", None, "the object is nested too deeply to be judged"),))


def _judge(  # noqa: PLR0911 - one row a hook
    hook: Hook, review: Review, raw: dict[str, Any], chain: AdmissionChain, info: AdmissionInfo
) -> Judgement:
    match hook:
        case Hook.MUTATE_PODS:
            # What a mutation gives a container is fixed at creation; later it could only be refused.
            return chain.admit_pod(raw, info) if info.operation == "CREATE" else ALLOWED
        case Hook.VALIDATE_PODS:
            return chain.validate_pod(raw, review.old, info)
        case Hook.MUTATE_BIND_REQUESTS:
            return chain.admit_bind_request(raw, info)
        case Hook.VALIDATE_BIND_REQUESTS:
            return chain.validate_bind_request(raw, review.old, info)
        case Hook.VALIDATE_WORKLOADS:
            return judge_workload(chain, chain.workloads[review.group, review.kind], raw, review.old, info)
        case Hook.MUTATE_EPHEMERAL_CONTAINERS:
            return chain.admit_ephemeral_containers(raw, review.old or {}, info)
        case Hook.VALIDATE_EPHEMERAL_CONTAINERS:
            return chain.validate_ephemeral_containers(raw, review.old or {}, info)
        case Hook.VALIDATE_BINDINGS:
            return chain.validate_binding(_bound_pod(review, raw), info)
        case _:
            assert_never(hook)


def _is_for(hook: Hook, review: Review, chain: AdmissionChain) -> bool:
    match hook:
        case Hook.MUTATE_PODS | Hook.VALIDATE_PODS:
            return (review.group, review.kind) == ("", "Pod")
        case Hook.MUTATE_EPHEMERAL_CONTAINERS | Hook.VALIDATE_EPHEMERAL_CONTAINERS:
            return (review.group, review.kind) == ("", "Pod") and bool(review.subresource)
        case Hook.MUTATE_BIND_REQUESTS | Hook.VALIDATE_BIND_REQUESTS:
            return (review.group, review.kind) == (names.GROUP, names.KIND)
        case Hook.VALIDATE_BINDINGS:
            return (review.group, review.kind) == ("", "Binding")
        case Hook.VALIDATE_WORKLOADS:
            return (review.group, review.kind) in chain.workloads
        case _:
            assert_never(hook)


def _bound_pod(review: Review, binding: Object) -> ObjectKey:
    """Return the pod that a Binding is of: named in the URL, or by an older way to bind only in the object."""
    metadata = binding.get("metadata")
    named = metadata.get("name") if isinstance(metadata, dict) else ""
    return ObjectKey(review.namespace, review.name or (named if isinstance(named, str) else ""))


def encode_answer(review: Review, judgement: Judgement) -> bytes:
    """Encode the verdict in the version in which the review was asked."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": judgement.allowed}
    if judgement.errors:
        response["status"] = _denial(review, judgement.errors)
    elif judgement.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(judgement.patch)).decode()
    if judgement.warnings:
        response["warnings"] = [_warning(fault) for fault in judgement.warnings]
    noted = judgement.errors or judgement.warnings
    if noted:
        # Keys are put below the webhook's name in the audit event.
        rules = ",".join(dict.fromkeys(fault.rule for fault in noted))
        response["auditAnnotations"] = {"decision": "refused" if judgement.errors else "warned", "rules": rules}
    return orjson.dumps({"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response})


def display_name(metadata: Object) -> str:
    """Return the name of an object; ``prefix*`` for one whose name the API server is still to generate."""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return name
    return f"{prefix}*" if isinstance(prefix, str) and prefix else ""


def _denial(review: Review, errors: Sequence[FieldError]) -> dict[str, Any]:
    """Return the metav1.Status. kubectl shows only the causes, events of controllers only the message."""
    texts = [str(fault) for fault in errors]
    metadata = (review.object or {}).get("metadata")
    return {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": texts[0] if len(texts) == 1 else f"{len(texts)} faults: {'; '.join(texts)}",
        "details": {
            "group": review.group,
            "kind": review.kind,
            "name": review.name or (display_name(metadata) if isinstance(metadata, dict) else ""),
            "causes": [
                # Readers put the field before the message; both together are the text of the fault.
                {"reason": "FieldValueInvalid", "field": fault.path, "message": _without_path(fault)}
                for fault in errors
            ],
        },
    }


def _without_path(fault: FieldError) -> str:
    return f"{shown(fault.value)}: {fault.message}" if fault.path else fault.message


def _warning(fault: FieldError) -> str:
    text = " ".join(str(fault).split())  # one with a line break would be dropped
    return text if len(text) <= MAX_WARNING else text[: MAX_WARNING - 3] + "..."
