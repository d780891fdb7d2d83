"""The base of the configuration's models, and pydantic's errors as FieldErrors, with the user's paths and terms."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from bowline.api.field_error import FieldError, join_path
from bowline.api.rule import Rule

# With which pydantic's sentences begin: the path states what it is.
_SUBJECT: Final = re.compile(r"^(?:Input|String|List|Dictionary|Tuple|Value) should ")
# Replaces messages that mention Python types.
_WORDS: Final[Mapping[str, str]] = {
    "missing": "is required",
    "extra_forbidden": "is not a known key",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "model_attributes_type": "must be a mapping",
}


class ConfigModel(BaseModel):
    """A part of the configuration. It is built at its first use, and as a default not at all: a command that reads
    no configuration starts sooner.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", defer_build=True
    )


def schema_errors(rule: Rule, path: str, errors: Iterable[Any]) -> list[FieldError]:
    """Convert pydantic's error entries into FieldErrors below ``path``."""
    # For a list whose items are all invalid it also reports that the list is too short.
    return [_error(rule, path, error) for error in errors if error["type"] != "too_short" or not error["input"]]


def _error(rule: Rule, path: str, error: Any) -> FieldError:
    for token in error["loc"]:
        path = join_path(path, f"[{token}]" if isinstance(token, int) else str(token))
    value = None if error["type"] == "missing" else error["input"]
    return FieldError(rule, path, value, _message(error))


def _message(error: Any) -> str:
    if error["type"] == "string_type" and isinstance(error["input"], bool | int | float):
        return "must be a string; put it in quotes"
    if error["type"] == "greater_than" and error["ctx"]["gt"] == "datetime.timedelta(0)":
        return "must be greater than 0s"
    # The exception of a validator of ours has its text alone.
    message = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    message = _SUBJECT.sub("must ", message)
    if error["type"] == "literal_error":
        message = message.replace("True", "true").replace("False", "false")
    return _WORDS.get(error["type"]) or message[:1].lower() + message[1:]
