"""Errors of the API server and of the connection to it, as one tree below ``KubeError``.

An ``InfrastructureError`` is not the request's fault: there is no decision, and the call is repeated later. An
``ApiError`` is the API server's decision on this request.

``InfrastructureError.may_have_been_applied`` states whether a write may have been applied despite the error. A reply
without a metav1.Status is not the API server's decision on the request, whatever its code: it is never final. Replies
are classified only here; exceptions of libraries are translated in ``bowline.kube`` and never leave it.
"""

# ruff: noqa: N818 - named as the API server names its reasons

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import orjson

from bowline.kube.denial import Denial

# Maximum length of a message in an object's status; an Invalid repeats whole values and can be 100 KiB.
MAX_MESSAGE = 1024
# API servers ask for seconds; a proxy under maintenance may ask for hours and recover sooner.
MAX_RETRY_AFTER = timedelta(minutes=1)
# Plain text that is not a metav1.Status: enough to recognize "404 page not found".
MAX_TEXT = 256


@dataclass(frozen=True, slots=True)
class Cause:
    """One of the ``details.causes`` of an ApiStatus."""

    reason: str = ""
    message: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class ApiStatus:
    """A decoded metav1.Status, or the equivalent of a reply without one."""

    code: int
    reason: str = ""
    message: str = ""
    causes: tuple[Cause, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    retry_after: timedelta | None = None

    def __str__(self) -> str:
        return f"{self.code} {self.reason}: {self.message}" if self.reason else f"{self.code}: {self.message}"


class KubeError(Exception):
    """Base of all errors of ``bowline.kube``."""


class NotStoredError(KubeError):
    """The API server accepted a write but stored something else (``bowline.kube.stored``).

    The message names object and field. ``stored``: the object in the reply.
    """

    def __init__(self, message: str, stored: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.stored = stored


class UndeclaredWriteError(KubeError):
    """Nothing was sent: the plugin has not declared the write, though the account may have the right for another."""


class CredentialsError(KubeError):
    """There are no usable credentials; the message names the file and the remedy."""


class InfrastructureError(KubeError):
    """The API server gave no decision. ``retry_after``: the delay it asks for."""

    may_have_been_applied: bool = False

    def __init__(self, message: str, status: ApiStatus | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def code(self) -> int:
        """The HTTP status code; 0 without a reply."""
        return self.status.code if self.status else 0

    @property
    def retry_after(self) -> timedelta | None:
        """The delay that the API server asks for; None if it does not."""
        return self.status.retry_after if self.status else None


class ConnectionFailed(InfrastructureError):
    """There was no connection to send the request on."""


class UntrustedServer(ConnectionFailed):
    """The TLS handshake has failed, usually because no trusted CA has signed the certificate."""


class NoResponse(InfrastructureError):
    """The request was sent, but no reply was received."""

    may_have_been_applied = True


class NoJSON(NoResponse):
    """The reply is no whole JSON object: a proxy has sent it, or it was cut."""


class TooManyRequests(InfrastructureError):
    """429: nothing was applied."""


class Unauthorized(InfrastructureError):
    """401: nothing was applied. Not the request's fault: every other one would be rejected as well."""


class ServerError(InfrastructureError):
    """5xx. A timeout inside the API server may follow the write; a failure of admission precedes it."""

    def __init__(self, message: str, status: ApiStatus | None = None) -> None:
        super().__init__(message, status)
        # Admission precedes storage.
        self.may_have_been_applied = status is None or not Denial.of(status.message).is_by_webhook


class UnrecognizedReply(InfrastructureError):
    """A reply below 500 without a metav1.Status. Its sender may have forwarded the request before."""

    may_have_been_applied = True


class ApiError(KubeError):
    """The API server's decision: repeating the same request gives the same result."""

    def __init__(self, status: ApiStatus) -> None:
        super().__init__(str(status))
        self.status = status

    @property
    def code(self) -> int:
        """The HTTP status code."""
        return self.status.code

    @property
    def reason(self) -> str:
        """The machine-readable reason, such as ``NotFound``."""
        return self.status.reason

    @property
    def message(self) -> str:
        """The API server's message."""
        return self.status.message

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The individual errors, with their fields."""
        return self.status.causes

    @property
    def details(self) -> Mapping[str, Any]:
        """The Status details: kind, name and more of the object."""
        return self.status.details


class BadRequest(ApiError):
    """400."""


class FieldSelectorUnsupported(BadRequest):
    """The resource cannot be selected by these fields (the CRD of another project); list all of it instead."""


class Forbidden(ApiError):
    """403: a missing permission; also used by admission."""


class NotFound(ApiError):
    """404 with the reason NotFound and the object's name in its details: the object does not exist."""


class Conflict(ApiError):
    """409: a precondition of the request does not hold."""


class AlreadyExists(Conflict):
    """409 on create: the name is taken."""


class Expired(ApiError):
    """410: restart with a list."""


class Unreadable(ApiError):
    """The reply has an object that is not decoded: too many bytes or values, or JSON that the reader refuses.

    Repeating the request gives the same; a write was applied.
    """

    def __init__(self, what: str) -> None:
        super().__init__(ApiStatus(0, "Unreadable", what))


class Invalid(ApiError):
    """422: the content is rejected."""


def with_failure(failure: KubeError | None, error: KubeError) -> KubeError:
    """Return the failure of several calls after one more has failed; what undoes goes on with the others.

    What cannot be decoded is nobody's to undo; everything else is tried again. Denials are all named.
    """
    if failure is None or isinstance(failure, Unreadable):
        return error
    if isinstance(failure, ApiError) and isinstance(error, ApiError):
        text = f"{failure.message}; {error.message}"[:MAX_MESSAGE]
        return type(failure)(replace(failure.status, message=text))
    return failure


# A missing permission, a quota, a policy or a webhook.
_DENIALS = (403, 422)
_BY_CODE: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
}


def from_status(status: ApiStatus) -> ApiError | InfrastructureError:
    """Return the error for a metav1.Status."""
    if status.code == 429:
        return TooManyRequests(str(status), status)
    if status.code == 401:
        return Unauthorized(str(status), status)
    if status.code >= 500:
        return ServerError(str(status), status)
    if status.reason == "AlreadyExists":
        return AlreadyExists(status)
    if status.code == 404 and not (status.reason == "NotFound" and status.details.get("name")):
        # A resource that is not served, or a webhook's denial: neither states that the object does not exist.
        return ApiError(status)
    return _BY_CODE.get(status.code, ApiError)(status)


def from_response(
    code: int, headers: Mapping[str, str], body: bytes, write: str = ""
) -> ApiError | InfrastructureError:
    """Return the error for an HTTP reply; ``code`` is not 2xx. Never raises, whatever the body contains.

    ``write``: verb, resource, namespace and name, which the message of a denial then has: that of a quota or a policy
    does not say where the object would be.
    """
    raw = _decode(body)
    has_status = raw.get("kind") == "Status" and raw.get("apiVersion") == "v1"
    if has_status:
        status = decode_status(raw, code)
        if write and code in _DENIALS:
            status = replace(status, message=f"{status.message} ({write})")
    else:
        plain = headers.get("Content-Type", "").startswith("text/plain")
        text = body[:MAX_TEXT].decode("utf-8", "replace").strip() if plain else ""
        status = ApiStatus(code, message=text or "the reply has no Kubernetes Status; a proxy may have sent it")
    retry_after = headers.get("Retry-After", "")
    if retry_after.isascii() and retry_after.isdigit():
        status = replace(status, retry_after=_wait(int(retry_after[:6])))
    if has_status or code in (401, 429) or code >= 500:
        # The API server's own overload filters answer these codes in plain text.
        return from_status(status)
    return UnrecognizedReply(str(status), status)


def decode_status(raw: Mapping[str, Any], code: int = 0) -> ApiStatus:
    """Decode a metav1.Status, from a reply's body or from an ERROR event of a watch.

    The HTTP code takes precedence over the Status's copy.
    """
    details = raw.get("details")
    details = details if isinstance(details, dict) else {}
    body_code = raw.get("code")
    causes = details.get("causes")
    wait = details.get("retryAfterSeconds")
    return ApiStatus(
        code=code or (body_code if isinstance(body_code, int) else 500),
        reason=_text(raw.get("reason")),
        message=_text(raw.get("message"))[:MAX_MESSAGE],
        causes=tuple(
            Cause(_text(c.get("reason")), _text(c.get("message"))[:MAX_MESSAGE], _text(c.get("field")))
            for c in (causes if isinstance(causes, list) else ())
            if isinstance(c, dict)
        ),
        details=details,
        retry_after=_wait(wait) if isinstance(wait, int) and wait > 0 else None,
    )


def _wait(seconds: int) -> timedelta:
    return timedelta(seconds=min(seconds, MAX_RETRY_AFTER.seconds))


def _decode(body: bytes) -> Mapping[str, Any]:
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return raw if isinstance(raw, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
