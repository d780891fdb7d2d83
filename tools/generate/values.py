"""Sections of the configuration in the chart's values and in their schema, from shared/bowline/framework/config.py.

Both files are written by hand but for these sections, whose keys have type, bounds, default and meaning in the model
alone. A type that the schema has no form for raises TypeError.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bowline.api.duration import format_duration
from bowline.framework.config import Settings
from tools.generate.configuration import meanings, model_of
from tools.generate.readme import CHART

SECTIONS: Final = ("binding", "leader_election", "feature_gates")
_WIDTH: Final = 124
_BOUNDS: Final = (("ge", "minimum"), ("le", "maximum"))


def as_yaml() -> str:
    """Return values.yaml with the present sections."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    for key, model in _sections():
        text = _replaced(text, f"  {key}:", "\n".join(_value_lines(model, "    ")))
    return text


def as_schema() -> str:
    """Return values.schema.json with the present sections."""
    text = (CHART / "values.schema.json").read_text(encoding="utf-8")
    for key, model in _sections():
        body = textwrap.indent(json.dumps(_object_schema(model), indent=2)[2:-2], " " * 8)
        text = _replaced(text, f'        "{key}": {{', body)
    return text


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name in SECTIONS:
        field = Settings.model_fields[name]
        model = model_of(field.annotation)
        if model is None or field.alias is None:
            raise TypeError(f"{name} is no section of the configuration")
        yield field.alias, model


def _replaced(text: str, head: str, body: str) -> str:
    """Return the text with another body below its line ``head``: the lines that are indented deeper."""
    deeper = len(head) - len(head.lstrip()) + 1
    pattern = rf"(?m)^{re.escape(head)}\n(?: {{{deeper},}}.*\n)*"
    text, count = re.subn(pattern, lambda _: f"{head}\n{body}\n", text)
    if count != 1:
        raise ValueError(f"{head.strip()} is there {count} times")
    return text


def _value_lines(model: type[BaseModel], indent: str) -> Iterator[str]:
    texts = meanings()[model.__name__]
    for name, field in model.model_fields.items():
        nested = model_of(field.annotation)
        meaning = (nested.__doc__ or "") if nested else texts[name]
        yield from textwrap.wrap(
            " ".join(meaning.split()), _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        if nested:
            yield f"{indent}{field.alias}:"
            yield from _value_lines(nested, indent + "  ")
        else:
            yield f"{indent}{field.alias}: {_value(field)}"


def _value(field: FieldInfo) -> str:
    default = field.get_default()
    if isinstance(default, timedelta):
        return format_duration(default)
    return yaml.safe_dump(default, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()


def _object_schema(model: type[BaseModel]) -> Mapping[str, Any]:
    properties = {field.alias or name: _schema(field) for name, field in model.model_fields.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(field: FieldInfo) -> Mapping[str, Any]:
    nested = model_of(field.annotation)
    if nested:
        return _object_schema(nested)
    if field.annotation is timedelta:
        is_positive = any(hasattr(bound, "gt") for bound in field.metadata)
        return {"$ref": f"#/definitions/{'positiveDuration' if is_positive else 'duration'}"}
    if field.annotation is bool:
        return {"type": "boolean"}
    if field.annotation is int:
        bounds = {
            key: getattr(bound, name) for name, key in _BOUNDS for bound in field.metadata if hasattr(bound, name)
        }
        return {"type": "integer", **bounds}
    if field.annotation is str:
        return {"type": "string"}
    if get_origin(field.annotation) is Literal:
        return {"enum": list(get_args(field.annotation))}
    raise TypeError(f"{field.alias}: the schema has no form for {field.annotation}")
