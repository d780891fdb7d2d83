"""The API server's schema: which fields its objects have, of which type, and which must be given.

In a cluster the API server itself applies it, and kubectl asks it to deny unknown fields; offline, ``bowline lint``
does, for every kind of Kubernetes' own. Fields that Bowline reads are checked by its own rules as well, whose
messages name the remedy; the caller keeps one error for each path.

Types and names of fields are checked everywhere except in ``status``, which a client does not write. That a field
must be given is checked in pods and workloads only: elsewhere the API server has defaults that the schema does not
show. Decision 261.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from bowline.api.field_error import FieldError, join_path
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule
from bowline.framework.structure import MAX_ERRORS

UNKNOWN_FIELD: Final = Rule(
    "kubernetes/unknown-field",
    "the API server's schema has no such field: kubectl is denied the object, other clients lose the field without a "
    "message; only offline",
    cause=DenialCause.NOT_SUPPORTED,
    invalid="nodeSelectr: {gpu: yes}",
    valid='nodeSelector: {gpu: "yes"}',
)
TYPE: Final = Rule(
    "kubernetes/type",
    "a field has another type than in the API server's schema; only offline",
    cause=DenialCause.TYPE_INVALID,
    invalid="terminationGracePeriodSeconds: soon",
    valid="terminationGracePeriodSeconds: 30",
)
REQUIRED: Final = Rule(
    "kubernetes/required",
    "a field of a pod or a workload is missing that the API server requires; only offline",
    cause=DenialCause.REQUIRED,
    invalid="volumes: [{name: data, persistentVolumeClaim: {}}]",
    valid="volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
    needs_whole=True,
)
RULES: Final = (UNKNOWN_FIELD, TYPE, REQUIRED)

# Must be given, by the schema; the API server takes their zero value.
_OPTIONAL: Final = frozenset(
    {
        ("apps.v1.StatefulSetSpec", "serviceName"),
        ("core.v1.ISCSIVolumeSource", "lun"),
        ("core.v1.ContainerPort", "name"),
    }
)
# Right names at a wrong place, not misspelt ones.
_PLACED: Final = ("annotations", "labels", "schedulerName", "limits", "requests", "resources")
_WORDS: Final[Mapping[str, str]] = {
    "string": "a string",
    "boolean": "true or false",
    "int32": "a whole number",
    "int64": "a whole number",
    "number": "a number",
    "quantity": 'a quantity, such as 1, "500m" or "16Gi"',
    "intOrString": "a whole number or a string",
    "byte": "base64",
    "object": "an object",
    "list": "a list",
    "map": "an object",
}
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "quantity": (int, float, str),
    "intOrString": (int, str),
    "byte": (str,),
    "object": (dict,),
}
_LIMITS: Final = {"int32": 2**31, "int64": 2**63}
_WITH_PODS: Final = ("core.v1.", "apps.v1.", "batch.v1.")


class ApiSchema:
    """The schema of one version of Kubernetes. Raises ValueError for a version that is not known."""

    def __init__(self, version: str = "") -> None:
        document = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
        self.versions: tuple[str, ...] = tuple(document["versions"])
        self.version = version.removeprefix("v") or self.versions[-1]
        if self.version not in self.versions:
            raise ValueError(f"must be one of {', '.join(self.versions)}, not {version}")
        self._kinds: Mapping[str, str] = document["kinds"]
        self._variants: Mapping[str, Any] = document["definitions"]

    def has(self, group: str, version: str, kind: str) -> bool:
        """Return whether this version of Kubernetes serves the kind."""
        return self._definition(self._kinds.get(f"{group}/{version}/{kind}", "")) is not None

    def errors(self, api: tuple[str, str, str], raw: Object) -> list[FieldError]:
        """Return the errors of an object of a served kind: at most as many as a review reports."""
        name = self._kinds["/".join(api)]
        errors: list[FieldError] = []
        for error in self._object_errors({key: raw[key] for key in raw if key != "status"}, name, ""):
            errors.append(error)
            if len(errors) >= MAX_ERRORS:
                break
        return errors

    def _definition(self, name: str) -> Any:
        for versions, content in self._variants.get(name, ()):
            if self.version in versions:
                return content
        return None

    def _object_errors(self, value: Any, name: str, path: str) -> Iterator[FieldError]:
        definition = self._definition(name)
        if definition is None or isinstance(definition, str | list):
            yield from self._errors(value, definition or "any", path)
            return
        if not isinstance(value, dict):
            yield FieldError(TYPE, path, value, f"must be {_WORDS['object']}")
            return
        fields = definition["fields"]
        for field, content in value.items():
            if field not in fields:
                similar = () if field in _PLACED else get_close_matches(field, fields, 1, 0.6)
                hint = f"did you mean {similar[0]}?" if similar else "remove it, or move it to its place"
                yield FieldError(UNKNOWN_FIELD, join_path(path, field), content, f"is no field here; {hint}")
            elif content is not None:
                yield from self._errors(content, fields[field], join_path(path, field))
        if name.startswith(_WITH_PODS):
            for field in definition["required"]:
                if value.get(field) is None and (name, field) not in _OPTIONAL:
                    yield FieldError(REQUIRED, join_path(path, field), None, "is required")

    def _errors(self, value: Any, expected: Any, path: str) -> Iterator[FieldError]:
        if isinstance(expected, str) and expected.startswith("#"):
            yield from self._object_errors(value, expected[1:], path)
        elif isinstance(expected, list):
            yield from self._collection_errors(value, expected[0], expected[1], path)
        elif not _is(value, expected):
            quotes = isinstance(value, bool | int | float) and expected == "string"
            hint = "; put it in quotes" if quotes else ""
            yield FieldError(TYPE, path, value, f"must be {_WORDS[expected]}{hint}")

    def _collection_errors(self, value: Any, form: str, item_type: Any, path: str) -> Iterator[FieldError]:
        if not isinstance(value, list if form == "list" else dict):
            yield FieldError(TYPE, path, value, f"must be {_WORDS[form]}")
            return
        for key, item in enumerate(value) if isinstance(value, list) else value.items():
            if item is not None:
                yield from self._errors(item, item_type, f"{path}[{key}]")


def _is(value: Any, expected: str) -> bool:
    """Return whether the API server decodes the JSON value as a scalar of the type."""
    if expected in _LIMITS:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return is_whole and not isinstance(value, bool) and -_LIMITS[expected] <= value < _LIMITS[expected]
    if isinstance(value, bool):
        return expected in ("boolean", "any")
    types = _TYPES.get(expected)
    is_right = types is None or isinstance(value, types)
    return is_right and (expected != "byte" or _is_base64(value))


def _is_base64(text: str) -> bool:
    try:
        b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except ValueError:
        return False
    return True
