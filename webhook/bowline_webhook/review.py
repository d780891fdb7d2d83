"""AdmissionReview codec and review: bytes to a verdict to bytes. Pure.

    body ─► decode_review ─► Review ─► review_object (hook, chain) ─► Verdict ─► encode_answer ─► body

Works on plain dictionaries, so unknown fields survive unchanged: the response carries only the recorded patch
operations. Every body gets a response with its UID; only a body without a readable UID gets none
(``MalformedReviewError``). Does no I/O and no logging; independent of HTTP.
"""

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Final, Literal, cast, get_args

import orjson

from bowline.api.field_error import FieldError, format_value
from bowline.api.gpu_operator import UNKNOWN, GpuRuntime
from bowline.api.meta import Object
from bowline.api.rule import PRODUCT_FIELD, DenialCause, Rule, Severity, page_of, rules_text
from bowline.framework import structure
from bowline.framework.admission import ALLOWED, MORE, AdmissionChain, Verdict
from bowline.framework.interface.plugin import AdmissionInfo
from bowline_webhook.hooks import Hook, Review

TYPE: Final = Rule(
    "review/type",
    "a field of an AdmissionReview has another type than the API server sends",
    cause=DenialCause.TYPE_INVALID,
)
UNREADABLE: Final = Rule(
    "review/unreadable",
    "the object has too many values, or JSON that the reader refuses: more than 1,024 levels, lone surrogates, "
    "invalid UTF-8, infinite numbers",
    cause=DenialCause.TYPE_INVALID,
)
MISSING: Final = Rule(
    "review/missing", "an AdmissionReview has no object, or an UPDATE no old object", cause=DenialCause.REQUIRED
)
KIND: Final = Rule("review/kind", "the webhook receives a kind that it does not review", severity=Severity.WARNS)
DEPTH: Final = Rule("review/depth", "the object is nested too deeply to be reviewed", cause=DenialCause.TOO_LONG)
PATCH_SIZE: Final = Rule(
    "admission/patch-size", "the changes of an object are larger than a response may be", cause=DenialCause.TOO_LONG
)

RULES: Final = (
    TYPE,
    UNREADABLE,
    MISSING,
    KIND,
    DEPTH,
    PATCH_SIZE,
)


API_VERSION: Final = "admission.k8s.io/v1"

_MAX_UID: Final = 128
# The order of the fields of API servers.
_KIND_FIELD = rb'(?:"kind":"AdmissionReview",)?'
_VERSION_FIELD = rb'"apiVersion":"admission\.k8s\.io/v1",'
_HEAD: Final = re.compile(
    rb"\s*\{" + _KIND_FIELD + _VERSION_FIELD + _KIND_FIELD + rb'"request":\{"uid":"([\w-]{1,128})"'
)
_MAX_NAME: Final = 253
_FIRST_ERRORS: Final = 5
# Bound of a response: API servers hold it in memory for each call.
MAX_ANSWER: Final = 256 * 1024
MAX_WARNINGS: Final = 16
# Of all warnings together. API servers cut each warning of a response that has more, in the middle of a word.
MAX_WARNING_CHARACTERS: Final = 4096
# Counted as the commas and opening brackets of a body, an upper bound of the values in it. Decoding a value takes up
# to 250 bytes of memory and 100 to 300 ns. A pod has some hundred; an UPDATE with two ordinary objects of 1.5 MB, the
# most that etcd stores, has about 120,000.
MAX_VALUES: Final = 120_000


class MalformedReviewError(Exception):
    """The body is not an AdmissionReview that can be answered; the message states why. ``code``: the HTTP status."""

    def __init__(self, message: str, code: int = 400) -> None:
        self.code = code
        super().__init__(message)


Operation = Literal["CREATE", "UPDATE"]
_OPERATIONS: Final = frozenset(get_args(Operation))
Types = Mapping[str, frozenset[type]]
_OBJECT: Final[frozenset[type]] = frozenset({dict, NoneType})
_STRING: Final[frozenset[type]] = frozenset({str, NoneType})
# What is read of a request, and its types in JSON.
_REQUEST: Final[Types] = {
    **dict.fromkeys(("kind", "userInfo", "object", "oldObject"), _OBJECT),
    **dict.fromkeys(("subResource", "namespace", "name", "operation"), _STRING),
}
_KIND: Final[Types] = dict.fromkeys(("group", "kind"), _STRING)
_USER: Final[Types] = {"username": _STRING}


def decode_review(body: bytes) -> Review:
    """Decode a request's body.

    Raises MalformedReviewError if there is no UID to respond to. Other errors are returned in ``Review.errors``.
    """
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"{", b"["))) > MAX_VALUES:
        return _unreadable(body, MalformedReviewError(f"the body must not hold more than {MAX_VALUES} values", 413))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _unreadable(body, MalformedReviewError(f"the body is not JSON: {error}"))
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise MalformedReviewError('the body is not an AdmissionReview: kind must be "AdmissionReview"')
    version = document.get("apiVersion")
    if version != API_VERSION:
        raise MalformedReviewError(f"apiVersion must be {API_VERSION}, not {format_value(version)}")
    request = document.get("request")
    if not isinstance(request, dict):
        raise MalformedReviewError("request must be an object")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid or len(uid) > _MAX_UID:
        raise MalformedReviewError(f"request.uid must be a string of 1 to {_MAX_UID} characters")
    return _decode_request(uid, request)


def _unreadable(body: bytes, error: MalformedReviewError) -> Review:
    """Return a review that is denied: API servers write the UID first. Raises the error if there is none."""
    head = _HEAD.match(body)
    if head is None:
        raise error
    why = f"{error}; leave that out of the object, its managedFields too, or delete the object that is stored"
    return Review(head[1].decode(), {}, errors=(FieldError(UNREADABLE, "", None, why),))


def _decode_request(uid: str, request: dict[str, Any]) -> Review:
    errors: list[FieldError] = []
    fields = _typed(request, _REQUEST, "request", errors)
    kind = _typed(fields.get("kind") or {}, _KIND, "request.kind", errors)
    user = _typed(fields.get("userInfo") or {}, _USER, "request.userInfo", errors)
    operation, obj, old = fields.get("operation") or "", fields.get("object"), fields.get("oldObject")
    if operation in _OPERATIONS and not errors:
        needed = ("object", "oldObject") if operation == "UPDATE" else ("object",)
        errors += [
            FieldError(MISSING, f"request.{field}", None, f"is required for {operation}")
            for field in needed
            if fields.get(field) is None
        ]
    return Review(
        uid,
        obj or {},
        kind.get("group") or "",
        kind.get("kind") or "",
        fields.get("subResource") or "",
        fields.get("namespace") or "",
        fields.get("name") or "",
        operation,
        user.get("username") or "",
        old,
        tuple(errors),
    )


def _typed(source: dict[str, Any], types: Types, path: str, errors: list[FieldError]) -> dict[str, Any]:
    """Return the fields; one of another type is null, and added to ``errors``."""
    fields = source
    for field, permitted in types.items():
        if type(source.get(field)) not in permitted:
            word = "a string" if permitted is _STRING else "an object"
            errors.append(FieldError(TYPE, f"{path}.{field}", source[field], f"must be {word}"))
            fields = {**fields, field: None}
    return fields


def review_object(hook: Hook, review: Review, chain: AdmissionChain, gpu_runtime: GpuRuntime = UNKNOWN) -> Verdict:
    """Review the object. What the hook is not responsible for is allowed, with a warning if it is of another kind.

    During a rollout an old replica may receive kinds that only a newer one supports; that is no reason to deny them.
    """
    if review.errors:
        return Verdict(review.errors)
    if review.operation not in _OPERATIONS or review.subresource not in ("", hook.subresource):
        return ALLOWED
    if not hook.is_for(review, chain):
        message = f"{hook} does not review {review.kind or 'objects without a kind'}; see the webhook configuration"
        return Verdict(warnings=(FieldError(KIND, "", review.kind, message),))
    operation = cast(Operation, review.operation)
    info = AdmissionInfo(
        operation, review.namespace, review.kind, hook.is_final, gpu_runtime, request_uid=review.uid, user=review.user
    )
    try:
        return hook.call(chain, review, info)
    except RecursionError:
        return Verdict((FieldError(DEPTH, "", None, "the object is nested too deeply to be reviewed"),))


def encode_answer(review: Review, verdict: Verdict, docs_url: str = "") -> bytes:
    """Encode the verdict, at most ``MAX_ANSWER`` bytes.

    A patch that is too large becomes a denial; a denial that is too large is cut to its first errors. ``docs_url``:
    where the documentation is published; a denial names its page there.
    """
    answer = _encode_verdict(review, verdict, docs_url)
    if len(answer) <= MAX_ANSWER:
        return answer
    if verdict.allowed:
        message = f"the patch for this object would be longer than {MAX_ANSWER} bytes; make its lists shorter"
        return _encode_verdict(review, Verdict((FieldError(PATCH_SIZE, "", None, message),)), docs_url)
    return _encode_verdict(review, Verdict((*verdict.errors[:_FIRST_ERRORS], MORE)), docs_url)


def _encode_verdict(review: Review, verdict: Verdict, docs_url: str) -> bytes:
    response: dict[str, Any] = {"uid": review.uid, "allowed": verdict.allowed}
    if verdict.errors:
        response["status"] = _denial(review, verdict.errors, docs_url)
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = b2a_base64(orjson.dumps(verdict.patch), newline=False).decode()
    if verdict.warnings:
        warnings = verdict.warnings[:MAX_WARNINGS]
        response["warnings"] = [_warning(error, MAX_WARNING_CHARACTERS // len(warnings)) for error in warnings]
    findings = verdict.errors or verdict.warnings
    if findings:
        # The API server prefixes the keys with the webhook's name in the audit event.
        rules = rules_text(error.rule for error in findings[: structure.MAX_ERRORS])
        response["auditAnnotations"] = {"decision": "refused" if verdict.errors else "warned", "rules": rules}
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})


def display_name(raw: Object) -> str:
    """Return the name of an object; ``prefix*`` if the API server is still to generate it."""
    metadata = raw.get("metadata")
    name, prefix = map(metadata.get, ("name", "generateName")) if isinstance(metadata, dict) else ("", "")
    if isinstance(name, str) and name:
        return name
    return f"{prefix}*" if isinstance(prefix, str) and prefix else ""


def _denial(review: Review, errors: Sequence[FieldError], docs_url: str) -> dict[str, Any]:
    """Return the metav1.Status. kubectl prints only the causes, events of controllers only the message."""
    texts = [f"{error} ({error.rule})" for error in errors]
    message = texts[0] if len(texts) == 1 else f"{len(texts)} errors: {'; '.join(texts)}"
    page = page_of(errors[0].rule, docs_url)
    signature = f"denied the object; {f'see {page}' if page else _RULE_COMMAND}"
    return {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": f"{message}; see {page}" if page else message,
        "details": {
            "group": review.group[:_MAX_NAME],
            "kind": review.kind[:_MAX_NAME],
            "name": (review.name or display_name(review.object))[:_MAX_NAME],
            "causes": [
                # Clients print the field before the message; together they are the error's text.
                *(
                    {
                        "reason": error.rule.cause,
                        "field": error.path or PRODUCT_FIELD,
                        "message": f"{_without_path(error)} ({error.rule})",
                    }
                    for error in errors
                ),
                {"reason": rules_text(error.rule for error in errors), "field": PRODUCT_FIELD, "message": signature},
            ],
        },
    }


_RULE_COMMAND: Final = "a rule is explained by: bowline rule RULE"


def _without_path(error: FieldError) -> str:
    return f"{format_value(error.value)}: {error.message}" if error.path else error.message


def _warning(error: FieldError, length: int) -> str:
    """Return path, value, message and rule in one line, as in a denial; of a long one the rule is kept.

    The API server shows a warning without its origin, so it names the product, too.
    """
    text = " ".join(str(error).split())  # the API server drops a warning with a line break
    origin = f" ({error.rule}; {PRODUCT_FIELD})"
    room = max(length - len(origin), 0)
    return (text if len(text) <= room else f"{text[: max(room - 3, 0)]}..."[:room]) + origin[:length]
