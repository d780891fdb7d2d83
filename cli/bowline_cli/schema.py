"""The API server's own rules: its schema of its own kinds, and of quantities in pods of every scheduler.

In a cluster the API server itself applies them, and kubectl asks it to deny unknown fields; of an object of another
kind it denies the pods, later. Fields that Bowline reads are checked by its own rules as well, whose messages name
the remedy; the caller keeps one error for each path.

Types and names of fields are checked everywhere except in ``status``, which a client does not write. That a field
must be given is checked in pods and workloads only: elsewhere the API server has defaults that the schema does not
show. Its library ``kubernetes-validate`` is the extra ``schema``, because it has 108 MB.
"""

from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import Any, Final

from bowline.api.field_error import FieldError, format_value, join_path
from bowline.api.meta import Object
from bowline.api.quantity import as_stored, parse_quantity
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


QUANTITY: Final = Rule(
    "kubernetes/quantity",
    "a container's quantity is none, is negative, or is not whole although it counts devices; only offline: in "
    "a cluster the API server itself denies it",
    invalid="limits: {memory: much}",
    valid="limits: {memory: 1Gi}",
)
LIMIT: Final = Rule(
    "kubernetes/limit",
    "a container's request is above its limit, or counts devices and has no limit or another one; only offline",
    invalid="limits: {cpu: 1}\nrequests: {cpu: 2}",
    valid="limits: {cpu: 2}\nrequests: {cpu: 1}",
    needs_whole=True,
)
POD_LEVEL: Final = Rule(
    "kubernetes/resource",
    "a pod requests for all its containers another resource than CPU, memory and huge pages; only offline",
    invalid="resources: {limits: {example.com/device: 1}}",
    valid="resources: {limits: {cpu: 1}}",
)
RULES: Final = (QUANTITY, LIMIT, POD_LEVEL, UNKNOWN_FIELD, TYPE, REQUIRED)

_LISTS = ("initContainers", "containers")


def quantity_errors(spec: Object) -> Iterator[FieldError]:
    """Yield the errors of a pod spec whose structure is valid; paths begin with ``spec``."""
    for field in _LISTS:
        for index, container in enumerate(spec.get(field) or ()):
            resources = container.get("resources") or {}
            yield from _container_errors(resources, f"spec.{field}[{index}].resources")
    for part in ("limits", "requests"):
        for resource, value in ((spec.get("resources") or {}).get(part) or {}).items():
            if resource not in ("cpu", "memory") and not resource.startswith("hugepages-"):
                message = "must be cpu, memory or hugepages-SIZE: other resources are those of a container"
                yield FieldError(POD_LEVEL, f"spec.resources.{part}[{resource}]", value, message)


def _container_errors(resources: Object, path: str) -> Iterator[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, entries in (("limits", limits), ("requests", requests)):
        for resource, value in entries.items():
            error = _value_error(resource, value)
            if error:
                yield FieldError(QUANTITY, f"{path}.{name}[{resource}]", value, error)
    for resource, value in requests.items():
        request, limit = _quantity(value), _quantity(limits[resource]) if resource in limits else None
        if request is None:
            continue
        is_device = not _is_overcommitted(resource)
        if resource not in limits and is_device:
            amount = "a corrected request" if _value_error(resource, value) else format_value(value)
            message = f"is required, because {resource} is not overcommitted; set it to {amount}"
            yield FieldError(LIMIT, f"{path}.limits[{resource}]", None, message)
        elif limit is not None and (request > limit or (is_device and request != limit)):
            rule = "the same as" if is_device else "at most"
            message = f"must be {rule} the limit, {format_value(limits[resource])}"
            yield FieldError(LIMIT, f"{path}.requests[{resource}]", value, message)


def _value_error(resource: str, value: Any) -> str:
    quantity = _quantity(value)
    if quantity is None:
        return 'must be a quantity, such as 1, "500m" or "16Gi"'
    if quantity < 0:
        return "must be 0 or more"
    if _is_extended(resource) and quantity != quantity.to_integral_value():
        return "must be a whole number"
    return ""


def _quantity(value: Any) -> Decimal | None:
    """Return the quantity as the API server stores it, null as 0; None if it cannot be parsed."""
    try:
        return as_stored(parse_quantity(value))
    except ValueError:
        return None


def _is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def _is_extended(resource: str) -> bool:
    return not _is_native(resource) and not resource.startswith("requests.")


def _is_overcommitted(resource: str) -> bool:
    return _is_native(resource) and not resource.startswith("hugepages-")
