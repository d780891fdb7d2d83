"""Errors of the API server and of the connection to it, as ``KubeClient`` raises them."""

from bowline.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionFailed,
    CredentialsError,
    Expired,
    Forbidden,
    InfrastructureError,
    Invalid,
    KubeError,
    NoResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "Conflict",
    "ConnectionFailed",
    "CredentialsError",
    "Expired",
    "Forbidden",
    "InfrastructureError",
    "Invalid",
    "KubeError",
    "NoResponse",
    "NotFound",
    "ServerError",
    "TooManyRequests",
    "Unauthorized",
]
