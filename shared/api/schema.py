"""From pydantic's errors to faults: what a model at an edge refuses, in the words and paths of its user."""

from typing import Any

from shared.api.field_error import FieldError, join_path


def schema_fault(rule: str, path: str, fault: Any) -> FieldError:
    """Turn one of pydantic's error entries into a FieldError below ``path``."""
    for token in fault["loc"]:
        path = join_path(path, f"[{token}]" if isinstance(token, int) else str(token))
    if fault["type"] == "missing":
        return FieldError(rule, path, None, "is required")
    if fault["type"] == "extra_forbidden":
        return FieldError(rule, path, fault["input"], "is not a known key")
    message = fault["msg"].removeprefix("Value error, ")
    return FieldError(rule, path, fault["input"], message[:1].lower() + message[1:])
