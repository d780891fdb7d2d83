"""JSON types of the fields that plugins read, checked once before any plugin runs.

The API server checks the types of pods and workloads before it calls a webhook. It does not for custom resources,
whose schema is applied after the mutating webhooks, and files given to ``bowline lint`` are unchecked. After this
check, a plugin may assume that ``containers`` is a list of objects and an annotation a string.

A schema is data: a type or ``_QUANTITY`` for a scalar, ``[schema]`` for a list, ``{"field": schema}`` for an object
with known fields, ``{EVERY: schema}`` for one with free keys, such as annotations. An absent or null field is valid,
as in the API server; fields without a schema are ignored. The meaning of values is not checked here. pydantic, which
checks the configuration, collects all errors before any limit applies: a caller could send thousands in one review.
"""

from collections.abc import Iterable, Mapping, Sequence
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


Schema = Any  # mypy cannot express this recursion with the type tests below
EVERY: Final = "*"
_QUANTITY: Final = frozenset({str, int, float})
# In an array of more objects, one search for those to look at costs less than a look at each.
_FEW: Final = 4
_MESSAGES: Final[Mapping[Any, str]] = {
    str: "must be a string",
    bool: "must be true or false",
    dict: "must be an object",
    _QUANTITY: 'must be a quantity, such as 1, "500m" or "16Gi"',
}


def _errors(value: Any, schema: Schema) -> Sequence[FieldError]:
    """Return the type errors, with paths relative to the value: a well-formed value builds no path."""
    if type(value) is not type(schema):
        if type(schema) is dict or type(schema) is list:
            return (FieldError(TYPE, "", value, f"must be {'a list' if type(schema) is list else 'an object'}"),)
        if type(value) is schema or (schema is _QUANTITY and type(value) in schema):
            return ()
        quotes = "; put it in quotes" if schema is str and isinstance(value, bool | int | float) else ""
        return (FieldError(TYPE, "", value, f"{_MESSAGES[schema]}{quotes}"),)
    is_object = type(value) is dict
    every = schema.get(EVERY) if is_object else schema[0]
    items: Iterable[tuple[Any, Any]] = value.items() if is_object else enumerate(value)
    if type(every) is dict:
        if len(value) > _FEW and {*map(type, value)} == {dict}:
            items = _unlike(value, every)
    elif every is not None:
        types = every if every is _QUANTITY else {every}
        if types.issuperset(map(type, value.values() if is_object else value)):
            return ()
    errors: list[FieldError] = []
    for key, item in items:
        expected = every or schema.get(key)
        if type(item) is expected or expected is None or (item is None and every is None):
            continue
        item_errors = _errors(item, expected)
        if item_errors:
            errors += [error.under(str(key) if every is None else f"[{key}]") for error in item_errors]
            if len(errors) >= MAX_ERRORS:
                break
    return errors


def _unlike(objects: Sequence[Object], schema: Schema) -> list[tuple[int, Object]]:
    """Return the objects with a field of another type than a scalar of the schema; of variables, few are."""
    indices = {
        i for i, item in enumerate(objects) for key, field in item.items() if type(field) is not schema.get(key)
    }
    return [(index, objects[index]) for index in sorted(indices)]


_METADATA = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "labels": {EVERY: str},
    "annotations": {EVERY: str},
    "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str, "controller": bool}],
    "finalizers": [str],
    "creationTimestamp": str,
    "deletionTimestamp": str,
}
_RESOURCES = {
    "limits": {EVERY: _QUANTITY},
    "requests": {EVERY: _QUANTITY},
    "claims": [{"name": str, "request": str}],
}
_REFERENCE = {"name": str, "key": str}
_CONTAINER = {
    "name": str,
    "image": str,
    "restartPolicy": str,
    "command": [str],
    "args": [str],
    "env": [
        {
            "name": str,
            "value": str,
            "valueFrom": {"configMapKeyRef": _REFERENCE, "secretKeyRef": _REFERENCE, "fieldRef": dict},
        }
    ],
    "envFrom": [{"prefix": str, "configMapRef": _REFERENCE, "secretRef": _REFERENCE}],
    "resources": _RESOURCES,
    "volumeMounts": [{"name": str, "mountPath": str}],
    "securityContext": {"privileged": bool},
}
_POD_SPEC = {
    "schedulerName": str,
    "nodeName": str,
    "runtimeClassName": str,
    "nodeSelector": {EVERY: str},
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "ephemeralContainers": [_CONTAINER],
    "resources": _RESOURCES,
    "resourceClaims": [{"name": str, "resourceClaimName": str, "resourceClaimTemplateName": str}],
    "volumes": [{"name": str, "configMap": _REFERENCE, "hostPath": {"path": str}}],
    "tolerations": [dict],
    "schedulingGates": [dict],
}
POD_SPEC_FIELDS: Final = tuple(_POD_SPEC)
_POD = {"metadata": _METADATA, "spec": _POD_SPEC, "status": dict}
_WORKLOAD = {"metadata": _METADATA, "spec": {"jobTemplate": {"spec": dict}}, "status": dict}
_FOREIGN_WORKLOAD = {"metadata": _METADATA}
_BIND_REQUEST = {"metadata": _METADATA, "status": dict}  # its spec is validated by the model


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
