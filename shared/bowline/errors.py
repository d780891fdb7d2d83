"""Errors of the API server that a plugin handles, as ``ObjectClient`` raises them.

An ``InfrastructureError``, such as a timeout or a 5xx, need not be caught: the framework repeats the call.
"""

from bowline.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    InfrastructureError,
    Invalid,
    KubeError,
    NotFound,
    NotStoredError,
)

__all__ = [
    "AlreadyExists",
    "ApiError",
    "Conflict",
    "Forbidden",
    "InfrastructureError",
    "Invalid",
    "KubeError",
    "NotFound",
    "NotStoredError",
]
