"""The conditions of a BindRequest: their types, and how to read one from a stored status. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.api.bindrequest import BindRequest

PREPARED = "Prepared"
BOUND = "Bound"
ROLLED_BACK = "RolledBack"


def condition_of(request: BindRequest, kind: str) -> Mapping[str, Any]:
    """Return the stored condition of that type; empty if there is none."""
    stored: Sequence[Mapping[str, Any]] = request.status.get("conditions") or ()
    return next((one for one in stored if one.get("type") == kind), {})
