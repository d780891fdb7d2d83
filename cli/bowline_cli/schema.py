"""The API server's schema of its own kinds, by the library ``kubernetes-validate``, which is the extra ``schema``.

In a cluster the API server itself applies it, and kubectl asks it to deny unknown fields. Fields that Bowline reads
are checked by its own rules as well, whose messages name the remedy; the caller keeps one error for each path.

Types and names of fields are checked everywhere except in ``status``, which a client does not write. That a field
must be given is checked in pods and workloads only: elsewhere the API server has defaults that the schema does not
show. The library is an extra, because it has 108 MB.
"""

from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import Any, Final

from bowline.api.field_error import FieldError, join_path
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule
from bowline.framework.structure import MAX_ERRORS

UNCHECKED: Final = "the API server's schema was not checked: run pip install 'bowline-binder[schema]'"

UNKNOWN_FIELD: Final = Rule(
    "kubernetes/unknown-field",
    "the API server's schema has no such field: kubectl is denied the object, other clients lose the field without a "
    "message; only offline, with the extra `schema`",
    cause=DenialCause.NOT_SUPPORTED,
    invalid="nodeSelectr: {gpu: yes}",
    valid='nodeSelector: {gpu: "yes"}',
)
TYPE: Final = Rule(
    "kubernetes/type",
    "a field has another type than in the API server's schema; only offline, with the extra `schema`",
    cause=DenialCause.TYPE_INVALID,
    invalid="terminationGracePeriodSeconds: soon",
    valid="terminationGracePeriodSeconds: 30",
)
REQUIRED: Final = Rule(
    "kubernetes/required",
    "a field of a pod or a workload is missing that the API server requires; only offline, with the extra `schema`",
    cause=DenialCause.REQUIRED,
    invalid="volumes: [{name: data, persistentVolumeClaim: {}}]",
    valid="volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
    needs_whole=True,
)
RULES: Final = (UNKNOWN_FIELD, TYPE, REQUIRED)

# Whose kinds are Kubernetes' own.
KUBERNETES_GROUPS: Final = frozenset(
    {
        *("", "apps", "autoscaling", "batch", "policy"),
        *(
            f"{group}.k8s.io"
            for group in (
                *("admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization"),
                *("certificates", "coordination", "discovery", "events", "flowcontrol.apiserver", "networking"),
                *("node", "rbac.authorization", "resource", "scheduling", "storage", "storagemigration"),
            )
        ),
    }
)
_WITH_PODS: Final = ("", "apps", "batch")
# Must be given, by the schema; the API server takes their zero value.
_OPTIONAL: Final = frozenset({"serviceName", "lun"})
_WORDS: Final = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "an object",
    "array": "a list",
}


def open_schema(version: str = "") -> "ApiSchema | None":
    """Return the schema of a version of Kubernetes, by default the newest one that the library has.

    None without the library. Raises ValueError for a version that it does not have, and for one that is named without
    the library.
    """
    try:
        library = import_module("kubernetes_validate.utils")
    except ModuleNotFoundError:
        if version:
            raise ValueError(f"cannot be used: {UNCHECKED}") from None
        return None
    versions = list(dict.fromkeys(map(library.major_minor, library.all_versions())))
    minor = version.removeprefix("v") or versions[-1]
    if minor not in versions:
        raise ValueError(f"must be one of {', '.join(versions)}, not {version}")
    return ApiSchema(library, minor)


class ApiSchema:
    """The schema of one version of Kubernetes."""

    def __init__(self, library: Any, version: str) -> None:
        self.version = version
        self._library = library
        self._documents: dict[tuple[str, str, str], Any] = {}

    def has(self, group: str, version: str, kind: str) -> bool:
        """Return whether this version of Kubernetes serves the kind."""
        return self._document((group, version, kind)) is not None

    def errors(self, api: tuple[str, str, str], raw: Object) -> list[FieldError]:
        """Return the errors of an object of a served kind: at most as many as a review reports."""
        document = self._document(api)
        validator = import_module("jsonschema").Draft202012Validator(document, registry=self._definitions)
        content = {key: raw[key] for key in raw if key != "status"}
        errors = (
            error
            for violation in validator.iter_errors(content)
            for error in _errors(violation)
            if error.rule is not REQUIRED or api[0] in _WITH_PODS
        )
        return list({(error.rule.id, error.path): error for error in islice(errors, MAX_ERRORS)}.values())

    def _document(self, api: tuple[str, str, str]) -> Any:
        """Return the JSON schema of a kind; None if it is not served. Its file is named by a part of the group."""
        if api not in self._documents:
            group, version, kind = api
            name = "-".join(part for part in (kind.lower(), group.partition(".")[0], version) if part)
            try:
                document = self._contents(name)
            except FileNotFoundError:
                document = None
            served = document["properties"]["apiVersion"].get("enum", ()) if document else ()
            self._documents[api] = document if f"{group}/{version}".lstrip("/") in served else None
        return self._documents[api]

    @cached_property
    def _definitions(self) -> Any:
        """The definitions that the schemas of all kinds refer to: 2 MB of JSON."""
        referencing = import_module("referencing")
        resource = referencing.Resource.from_contents(self._contents("_definitions"))
        return (resource @ referencing.Registry()).crawl()

    def _contents(self, name: str) -> Any:
        folder = f"kubernetes-json-schema/v{self.version}.0-local-strict"
        return self._library.schema_contents(f"{folder}/{name}.json", self.version)


def _errors(violation: Any) -> Iterator[FieldError]:
    """Yield what the library reports at one place, as errors of fields."""
    path, value = _path(violation), violation.instance
    if violation.validator == "additionalProperties" and isinstance(violation.validator_value, bool):
        for field in value:
            if field not in violation.schema.get("properties", ()):
                message = "is no field here; remove it, or correct its name or its place"
                yield FieldError(UNKNOWN_FIELD, join_path(path, field), value[field], message)
    elif violation.validator == "required":
        for field in violation.validator_value:
            if field not in value and field not in _OPTIONAL:
                yield FieldError(REQUIRED, join_path(path, field), None, "is required")
    elif violation.validator == "enum":
        yield FieldError(TYPE, path, value, f"must be {' or '.join(map(str, violation.validator_value))}")
    else:
        kinds = dict.fromkeys(_types(violation.schema))
        words = " or ".join(_WORDS[kind] for kind in kinds if kind in _WORDS)
        yield FieldError(TYPE, path, value, f"must be {words}" if words else "is not what the schema allows")


def _path(violation: Any) -> str:
    """Return the path of a field, as in all messages: keys of maps and places in lists are in brackets."""
    path, parts, steps = "", iter(violation.absolute_path), iter(violation.absolute_schema_path)
    for step in steps:
        if step == "properties":
            path = join_path(path, str(next(steps)))
            next(parts)
        elif step in ("items", "additionalProperties") and (part := next(parts, None)) is not None:
            path = f"{path}[{part}]"
    return path


def _types(schema: Any) -> Iterator[str]:
    types = schema.get("type", ())
    yield from (types,) if isinstance(types, str) else types
    for alternative in schema.get("oneOf", ()):
        yield from _types(alternative)
