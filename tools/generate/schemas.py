"""cli/bowline_cli/schemas.json: the fields of the API server's objects, for ``bowline lint``.

From the OpenAPI documents in the package ``kubernetes-validate``, of each version of Kubernetes that the chart
supports. Only what lint reads: the type of each field and which fields must be given; texts are left out, and a
definition that several versions share is written once. Without it the wheel would need that package, of 100 MB.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubernetes_validate.utils import schema_contents

VERSIONS: Final = ("1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
_PREFIXES: Final = ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apimachinery.pkg.")
_SPECIAL: Final = {"Quantity": "quantity", "IntOrString": "intOrString", "RawExtension": "any", "FieldsV1": "any"}
_SCALARS: Final = {"integer": "int64", "number": "number", "boolean": "boolean", "string": "string"}


def as_json() -> str:
    """Return the document: versions, kinds (``group/version/Kind``) and definitions, each with its versions."""
    kinds: dict[str, str] = {}
    definitions: dict[str, dict[str, list[str]]] = {}
    for version in VERSIONS:
        document = schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json", version)
        for name, definition in document["$defs"].items():
            if _is_left_out(name):
                continue
            content = json.dumps(_definition(definition), sort_keys=True, separators=(",", ":"))
            definitions.setdefault(_short(name), {}).setdefault(content, []).append(version)
            for kind in definition.get("x-kubernetes-group-version-kind", ()):
                if not kind["kind"].endswith(("List", "Options", "Event")):
                    kinds["/".join((kind["group"], kind["version"], kind["kind"]))] = _short(name)
    lines = [
        f"{json.dumps(name)}:[" + ",".join(f"[{json.dumps(vs)},{content}]" for content, vs in variants.items()) + "]"
        for name, variants in sorted(definitions.items())
    ]
    head = f'{{"versions":{json.dumps(VERSIONS)},\n"kinds":{json.dumps(kinds, sort_keys=True)},\n"definitions":{{\n'
    return head + ",\n".join(lines) + "\n}}\n"


def _is_left_out(name: str) -> bool:
    return name.endswith("List") or ".apiextensions." in name or not name.startswith(_PREFIXES)


def _short(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _definition(definition: Mapping[str, Any]) -> Any:
    if "properties" not in definition:
        return _type(definition)
    fields = {field: _type(schema) for field, schema in definition["properties"].items()}
    return {"fields": fields, "required": sorted(definition.get("required", ()))}


def _type(schema: Mapping[str, Any]) -> Any:
    """Return a type: a scalar's name, ``#definition``, ``["list", type]`` or ``["map", type]``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _SPECIAL.get(name.rpartition(".")[2]) or (f"#{_short(name)}" if not _is_left_out(name) else "any")
    if "oneOf" in schema:
        return "any"
    kind = _kind(schema.get("type"))
    if kind == "array":
        return ["list", _type(schema.get("items", {}))]
    if kind == "object":
        values = schema.get("additionalProperties")
        return ["map", _type(values)] if isinstance(values, dict) else "object"
    if schema.get("format") in ("int32", "byte"):
        return schema["format"]
    return _SCALARS.get(kind, "any")


def _kind(types: str | Iterable[str] | None) -> str:
    if types is None or isinstance(types, str):
        return types or ""
    return next((kind for kind in types if kind != "null"), "")
