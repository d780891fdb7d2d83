"""Which error a reply is."""

from datetime import timedelta
from typing import Any

import orjson
import pytest

from bowline.kube import errors
from bowline.kube.errors import ApiError, InfrastructureError, KubeError, from_response


def status(code: int, reason: str = "", message: str = "text", **details: Any) -> bytes:
    return orjson.dumps(
        {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message, "details": details}
    )


# As kube-apiserver words them: admission ends before anything is stored.
WEBHOOK_DOWN = (
    'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: '
    'Post "https://guard.example.svc:443/": no endpoints available for service "guard"'
)
DENIED = 'admission webhook "guard.example.com" denied the request: later'


@pytest.mark.parametrize(
    ("code", "reason", "expectation"),
    [
        pytest.param(401, "Unauthorized", errors.Unauthorized, id="rejected credentials are not about the request"),
        pytest.param(403, "Forbidden", errors.Forbidden, id="a missing right"),
        pytest.param(404, "NotFound", errors.NotFound, id="no such object"),
        pytest.param(409, "Conflict", errors.Conflict, id="a changed object"),
        pytest.param(409, "AlreadyExists", errors.AlreadyExists, id="a taken name"),
        pytest.param(410, "Expired", errors.Expired, id="an old resourceVersion"),
        pytest.param(422, "Invalid", errors.Invalid, id="rejected content"),
        pytest.param(429, "TooManyRequests", errors.TooManyRequests, id="rejected"),
        pytest.param(500, "InternalError", errors.ServerError, id="an internal error"),
        pytest.param(504, "Timeout", errors.ServerError, id="a timeout inside"),
        pytest.param(301, "", ApiError, id="a redirect is not followed"),
    ],
)
def test_class_of_a_reply(code: int, reason: str, expectation: type[KubeError]) -> None:
    error = from_response(code, {}, status(code, reason, name="a"))
    assert type(error) is expectation
    assert isinstance(error, (ApiError, InfrastructureError))
    assert error.code == code


@pytest.mark.parametrize(
    ("error", "expectation"),
    [
        pytest.param(errors.ConnectionFailed("x"), False, id="nothing was sent"),
        pytest.param(errors.NoResponse("x"), True, id="sent, and then nothing"),
        pytest.param(from_response(429, {}, b""), False, id="rejected before execution"),
        pytest.param(from_response(401, {}, b""), False, id="not let in"),
        pytest.param(from_response(504, {}, b""), True, id="a timeout inside the API server"),
        pytest.param(from_response(404, {}, b"<html>"), True, id="a proxy's reply"),
        pytest.param(from_response(500, {}, status(500, message=WEBHOOK_DOWN)), False, id="a webhook that is down"),
        pytest.param(from_response(503, {}, status(503, message=DENIED)), False, id="a webhook's denial with a 5xx"),
        pytest.param(from_response(500, {}, status(500, message="etcdserver: no leader")), True, id="etcd's trouble"),
    ],
)
def test_whether_a_failed_write_may_have_been_executed(error: InfrastructureError, expectation: bool) -> None:
    assert error.may_have_been_applied is expectation


@pytest.mark.parametrize(
    ("headers", "details", "expectation"),
    [
        pytest.param({"Retry-After": "7"}, {}, 7, id="by header"),
        pytest.param({}, {"retryAfterSeconds": 3}, 3, id="by the Status"),
        pytest.param({"Retry-After": "7"}, {"retryAfterSeconds": 3}, 7, id="the header counts"),
        pytest.param({"Retry-After": "3600"}, {}, 60, id="hours are not waited for"),
        pytest.param({}, {"retryAfterSeconds": 10**15}, 60, id="a too long time is capped"),
        pytest.param({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, {}, None, id="a date is not understood"),
        pytest.param({}, {}, None, id="not asked for"),
    ],
)
def test_retry_after(headers: dict[str, str], details: dict[str, Any], expectation: int | None) -> None:
    error = from_response(429, headers, status(429, **details))
    assert isinstance(error, InfrastructureError)
    assert error.retry_after == (timedelta(seconds=expectation) if expectation is not None else None)


@pytest.mark.parametrize(("code", "is_named"), [(403, True), (422, True), (409, False), (404, False)])
def test_a_denied_write_is_named(code: int, is_named: bool) -> None:
    error = from_response(code, {}, status(code, "Any", "exceeded quota: none"), "create pods reserved/gpu-1")
    assert isinstance(error, errors.ApiError)
    assert error.message == f"exceeded quota: none{' (create pods reserved/gpu-1)' if is_named else ''}"


@pytest.mark.parametrize(
    ("content_type", "body", "expectation"),
    [
        pytest.param("text/plain; charset=utf-8", b"404 page not found\n", "404 page not found", id="plain text"),
        pytest.param("text/plain", b"\xff\xfe", "\ufffd\ufffd", id="not even UTF-8"),
        pytest.param("text/html", b"<html>login</html>", "the reply has no", id="a page of something in between"),
        pytest.param("application/json", b"{", "the reply has no", id="broken JSON"),
    ],
)
def test_a_reply_that_is_not_a_status(content_type: str, body: bytes, expectation: str) -> None:
    error = from_response(502, {"Content-Type": content_type}, body)
    assert isinstance(error, errors.ServerError)
    assert error.status is not None
    assert error.status.message.startswith(expectation)
    assert len(error.status.message) <= 256


@pytest.mark.parametrize("code", [301, 403, 404, 422])
def test_a_reply_without_a_status_decides_nothing(code: int) -> None:
    error = from_response(code, {"Content-Type": "text/html", "Retry-After": "3"}, b"<html>a proxy's page</html>")
    assert type(error) is errors.UnrecognizedReply
    assert (error.code, error.retry_after) == (code, timedelta(seconds=3))


@pytest.mark.parametrize(
    ("reason", "details"),
    [
        pytest.param("NotFound", {}, id="a resource that is not served"),
        pytest.param("", {"name": "a"}, id="a webhook's denial with that code"),
    ],
)
def test_a_404_that_names_no_missing_object_is_no_absence(reason: str, details: dict[str, str]) -> None:
    error = from_response(404, {}, status(404, reason, **details))
    assert isinstance(error, ApiError)
    assert not isinstance(error, errors.NotFound)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"code": "410", "message": 7, "details": [], "reason": None}, id="wrong types everywhere"),
        pytest.param({"details": {"causes": {"not": "a list"}}}, id="causes that are no list"),
    ],
)
def test_a_malformed_status_is_an_internal_error(raw: dict[str, Any]) -> None:
    assert isinstance(errors.from_status(errors.decode_status(raw)), errors.ServerError)
