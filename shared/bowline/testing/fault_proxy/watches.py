"""The effect of a fault on the lines of a watch. Pure."""

import orjson

from bowline.testing.fault_proxy.faults import ExpireWatch, FailWatch


def last_event(fault: ExpireWatch | FailWatch) -> bytes:
    """Return the ERROR event with which the fault ends a watch."""
    if isinstance(fault, ExpireWatch):
        return error_event(410, "too old resource version")
    return error_event(fault.code, "an injected fault")


def status_body(code: int, message: str) -> bytes:
    """Return a metav1.Status like the API server's."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }
    return orjson.dumps(status)


def error_event(code: int, message: str) -> bytes:
    """Return the API server's ERROR event with this code."""
    return b'{"type":"ERROR","object":' + status_body(code, message) + b"}\n"


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
