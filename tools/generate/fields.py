"""docs/bindrequest.md: every field of a BindRequest, from the schema of its CustomResourceDefinition."""

from collections.abc import Iterator
from typing import Any, Final

from bowline.api import names
from tools.generate.crd import MUTABLE, custom_resource_definition
from tools.generate.tables import table

_HEAD: Final = f"""\
<!-- From shared/bowline/api/bindrequest.py and tools/generate/status.py. Do not edit. -->

# API: BindRequest

`apiVersion: {names.GROUP}/{names.VERSION}`, `kind: {names.KIND}`, namespaced, short name `{names.SHORT_NAME}`.
A scheduler creates it, with the pod as its owner, and reads its status. The spec is immutable except
`{MUTABLE[0]}`. Unknown fields of the spec are stored, those of the status are pruned. `kubectl explain
bindrequest.spec --recursive` prints the same from a cluster. The words in the status are in
[reasons and events](reference.md).
"""


def as_markdown() -> str:
    """Return the page."""
    [version] = custom_resource_definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    parts = [_HEAD]
    for part in ("spec", "status"):
        rows = fields(schema["properties"][part])
        parts.append(f"## `{part}`\n\n" + table(("field", "type", "meaning"), rows))
    return "\n".join(parts)


def fields(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, type and meaning of each field; `[]` stands for an entry of a list."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        kind = "int or string" if field.get("x-kubernetes-int-or-string") else field.get("type", "object")
        marks = [kind, *(["required"] if name in required else [])]
        values = ", ".join(f"`{value}`" for value in field.get("enum", ()) if value)
        meaning = field.get("description", "") + (f" One of {values}." if values else "")
        yield f"`{path}`", ", ".join(marks), " ".join(meaning.split())
        yield from fields(field, f"{path}.")
        yield from fields(field.get("items", {}), f"{path}[].")
