"""JSON types of the fields that plugins read, checked once before any plugin runs.

The API server checks the types of pods and workloads before it calls a webhook. It does not for custom resources,
whose schema is applied after the mutating webhooks, and files given to ``bowline lint`` are unchecked. After this
check, a plugin may assume that ``containers`` is a list of objects and an annotation a string.

A schema is data: a scalar type, ``[schema]`` for a list, ``{"field": schema}`` for an object with known fields,
``{EVERY: schema}`` for one with free keys, such as annotations. An absent or null field is valid, as in the API
server; fields without a schema are ignored. The meaning of values is not checked here. pydantic, which checks the
configuration, collects all errors before any limit applies: a caller could send thousands in one review.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule

TYPE: Final = Rule(
    "structure/type",
    "a field has another type than the API's",
    cause=DenialCause.TYPE_INVALID,
    invalid='annotations: "gpu-fraction=0.5"',
    valid='annotations: {gpu-fraction: "0.5"}',
)
REQUIRED: Final = Rule(
    "structure/required",
    "a pod or a BindRequest has no metadata or no spec",
    cause=DenialCause.REQUIRED,
    needs_whole=True,
)
CONTAINERS: Final = Rule(
    "structure/containers", "a pod has more containers than a review can examine", cause=DenialCause.TOO_MANY
)
RESOURCES: Final = Rule(
    "structure/resources",
    "the containers of a pod have more resources than a review can examine",
    cause=DenialCause.TOO_MANY,
)

RULES: Final = (
    TYPE,
    REQUIRED,
    CONTAINERS,
    RESOURCES,
)


# A check ends with the container, field or entry in which it reaches this number of errors.
MAX_ERRORS = 50
# Pods with more containers, or resources of containers, are not reviewed: no node runs such a pod, and a plugin may
# take some microseconds for each.
MAX_CONTAINERS = 512
MAX_RESOURCES = 2048
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class _Scalar:
    """A value that is checked by its Python type alone, as the JSON decoder returns it."""

    types: frozenset[type]
    message: str


Schema = Any  # mypy cannot express this recursion with the type tests below
EVERY: Final = "*"
_STRING = _Scalar(frozenset({str}), "must be a string")
_BOOLEAN = _Scalar(frozenset({bool}), "must be true or false")
_QUANTITY = _Scalar(frozenset({str, int, float}), 'must be a quantity, such as 1, "500m" or "16Gi"')
_OBJECT = _Scalar(frozenset({dict}), "must be an object")


def _errors(value: Any, schema: Schema) -> Sequence[FieldError]:
    """Return the type errors, with paths relative to the value: a well-formed value builds no path."""
    if type(value) is not type(schema):
        if type(schema) is not _Scalar:
            return (FieldError(TYPE, "", value, f"must be {'a list' if type(schema) is list else 'an object'}"),)
        if type(value) in schema.types:
            return ()
        quotes = "; put it in quotes" if schema is _STRING and isinstance(value, bool | int | float) else ""
        return (FieldError(TYPE, "", value, f"{schema.message}{quotes}"),)
    is_object = type(value) is dict
    every = schema.get(EVERY) if is_object else schema[0]
    if type(every) is _Scalar and every.types.issuperset(map(type, value.values() if is_object else value)):
        return ()
    errors: list[FieldError] = []
    for key, item in value.items() if is_object else enumerate(value):
        expected = every or schema.get(key)
        if expected is None or (type(expected) is _Scalar and type(item) in expected.types):
            continue
        if item is None and every is None:
            continue
        item_errors = _errors(item, expected)
        if item_errors:
            errors += [error.under(str(key) if every is None else f"[{key}]") for error in item_errors]
            if len(errors) >= MAX_ERRORS:
                break
    return errors


_METADATA = {
    "name": _STRING,
    "generateName": _STRING,
    "namespace": _STRING,
    "uid": _STRING,
    "labels": {EVERY: _STRING},
    "annotations": {EVERY: _STRING},
    "ownerReferences": [
        {"apiVersion": _STRING, "kind": _STRING, "name": _STRING, "uid": _STRING, "controller": _BOOLEAN}
    ],
    "finalizers": [_STRING],
    "creationTimestamp": _STRING,
    "deletionTimestamp": _STRING,
}
_RESOURCES = {
    "limits": {EVERY: _QUANTITY},
    "requests": {EVERY: _QUANTITY},
    "claims": [{"name": _STRING, "request": _STRING}],
}
_REFERENCE = {"name": _STRING, "key": _STRING}
_CONTAINER = {
    "name": _STRING,
    "image": _STRING,
    "restartPolicy": _STRING,
    "command": [_STRING],
    "args": [_STRING],
    "env": [
        {
            "name": _STRING,
            "value": _STRING,
            "valueFrom": {"configMapKeyRef": _REFERENCE, "secretKeyRef": _REFERENCE, "fieldRef": _OBJECT},
        }
    ],
    "envFrom": [{"prefix": _STRING, "configMapRef": _REFERENCE, "secretRef": _REFERENCE}],
    "resources": _RESOURCES,
    "volumeMounts": [{"name": _STRING, "mountPath": _STRING}],
    "securityContext": {"privileged": _BOOLEAN},
}
_POD_SPEC = {
    "schedulerName": _STRING,
    "nodeName": _STRING,
    "runtimeClassName": _STRING,
    "nodeSelector": {EVERY: _STRING},
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "ephemeralContainers": [_CONTAINER],
    "resources": _RESOURCES,
    "resourceClaims": [{"name": _STRING, "resourceClaimName": _STRING, "resourceClaimTemplateName": _STRING}],
    "volumes": [{"name": _STRING, "configMap": _REFERENCE, "hostPath": {"path": _STRING}}],
    "tolerations": [_OBJECT],
    "schedulingGates": [_OBJECT],
}
POD_SPEC_FIELDS: Final = tuple(_POD_SPEC)
_POD = {"metadata": _METADATA, "spec": _POD_SPEC, "status": _OBJECT}
_WORKLOAD = {"metadata": _METADATA, "spec": {"jobTemplate": {"spec": _OBJECT}}, "status": _OBJECT}
_FOREIGN_WORKLOAD = {"metadata": _METADATA}
_BIND_REQUEST = {"metadata": _METADATA, "status": _OBJECT}  # its spec is validated by the model


def pod_errors(raw: Object) -> tuple[FieldError, ...]:
    """Return the type and size errors of a pod or of a pod template's content."""
    if raw.get("metadata") is None or raw.get("spec") is None:
        return (*_missing(raw, "metadata"), *_missing(raw, "spec"), *_errors(raw, _POD))
    return tuple(_errors(raw, _POD)) or _size_errors(raw["spec"])


def workload_errors(raw: Object) -> tuple[FieldError, ...]:
    """Return the type errors of a built-in workload, except in its pod template."""
    return (*_missing(raw, "metadata"), *_missing(raw, "spec"), *_errors(raw, _WORKLOAD))


def foreign_workload_errors(raw: Object) -> tuple[FieldError, ...]:
    """Return the same for an external kind, of which only the metadata is known."""
    return (*_missing(raw, "metadata"), *_errors(raw, _FOREIGN_WORKLOAD))


def bind_request_errors(raw: Object) -> tuple[FieldError, ...]:
    """Return the type errors of a BindRequest, except in its spec."""
    return (*_missing(raw, "metadata"), *_errors(raw, _BIND_REQUEST))


def is_deleting(raw: Object) -> bool:
    """Like ``meta.is_deleting``, for an object whose structure is unchecked."""
    metadata = raw.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


def _size_errors(spec: Object) -> tuple[FieldError, ...]:
    """Return the size errors of a well-formed pod."""
    containers = [container for field in _CONTAINERS for container in spec.get(field) or ()]
    if len(containers) > MAX_CONTAINERS:
        message = f"must not have more than {MAX_CONTAINERS} containers of all kinds; split the pod"
        return (FieldError(CONTAINERS, "spec.containers", len(containers), message),)
    resources = 0
    for container in containers:
        of_container = container.get("resources")
        if of_container:
            resources += sum([len(of_container.get(part) or ()) for part in ("limits", "requests", "claims")])
    if resources > MAX_RESOURCES:
        message = f"must not have more than {MAX_RESOURCES} resources in all containers; remove those without a use"
        return (FieldError(RESOURCES, "spec.containers", resources, message),)
    return ()


def _missing(raw: Object, name: str) -> Sequence[FieldError]:
    return (FieldError(REQUIRED, name, None, "is required"),) if raw.get(name) is None else ()
