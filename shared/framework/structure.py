"""JSON types of the fields that plugins read, checked once before any plugin runs.

The API server checks the types of pods and workloads before it calls a webhook. It does not for custom resources,
whose schema is applied after the mutating webhooks, and files given to ``bowline lint`` are unchecked. After this
check, a plugin may assume that ``containers`` is a list of objects and an annotation a string.

A shape is a function from a value to its errors, with paths relative to the value: a well-formed object builds no
path at all. An absent or null field is valid, as in the API server; fields without a shape are ignored. The meaning
of values is not checked here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.api.field_error import FieldError
from shared.api.meta import Object

# A check ends with the container, field or entry in which it reaches this number of errors.
MAX_ERRORS = 50
# Pods with more containers, or resources of containers, are not reviewed: no node runs such a pod, and a plugin may
# take some microseconds for each.
MAX_CONTAINERS = 512
MAX_RESOURCES = 2048
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
Shape = Callable[[Any], Sequence[FieldError]]
_FITS: tuple[FieldError, ...] = ()


def _fault(value: Any, message: str) -> Sequence[FieldError]:
    # Each enclosing shape prefixes its own part of the path.
    return (FieldError("structure/type", "", value, message),)


def _string(value: Any) -> Sequence[FieldError]:
    if isinstance(value, str):
        return _FITS
    quotable = isinstance(value, bool | int | float)
    return _fault(value, "must be a string; put it in quotes" if quotable else "must be a string")


def _boolean(value: Any) -> Sequence[FieldError]:
    return _FITS if isinstance(value, bool) else _fault(value, "must be true or false")


def _quantity(value: Any) -> Sequence[FieldError]:
    fits = isinstance(value, str | int | float) and not isinstance(value, bool)
    return _FITS if fits else _fault(value, 'must be a quantity, such as 1, "500m" or "16Gi"')


# A value of this type is valid without a call; pods consist mostly of such values.
_FITTING: Mapping[Shape, type] = {_string: str, _boolean: bool, _quantity: str}


def _fields(**shapes: Shape) -> Shape:
    """Return the shape of an object with known fields."""
    fitting = {name: _FITTING[shape] for name, shape in shapes.items() if shape in _FITTING}

    def check(value: Any) -> Sequence[FieldError]:
        if not isinstance(value, dict):
            return _fault(value, "must be an object")
        faults: list[FieldError] = []
        # By the fields that are there: objects have few of those that a shape names.
        for name, field in value.items():
            if type(field) is fitting.get(name) or field is None:
                continue
            shape = shapes.get(name)
            found = shape(field) if shape is not None else _FITS
            if found:
                faults += [fault.under(name) for fault in found]
                if len(faults) >= MAX_ERRORS:
                    break
        return faults or _FITS

    return check


def _values(shape: Shape) -> Shape:
    """Return the shape of an object with free keys, such as annotations. A null value is an error here."""
    fitting = _FITTING.get(shape)

    def check(value: Any) -> Sequence[FieldError]:
        if not isinstance(value, dict):
            return _fault(value, "must be an object")
        faults: list[FieldError] = []
        for key, item in value.items():
            if type(item) is not fitting:
                found = shape(item)
                if found:
                    faults += [fault.under(f"[{key}]") for fault in found]
                    if len(faults) >= MAX_ERRORS:
                        break
        return faults or _FITS

    return check


def _items(shape: Shape) -> Shape:
    """Return the shape of a list."""

    def check(value: Any) -> Sequence[FieldError]:
        if not isinstance(value, list):
            return _fault(value, "must be a list")
        faults: list[FieldError] = []
        for index, item in enumerate(value):
            found = shape(item)
            if found:
                faults += [fault.under(f"[{index}]") for fault in found]
                if len(faults) >= MAX_ERRORS:
                    break
        return faults or _FITS

    return check


_OBJECT = _fields()
_METADATA = _fields(
    name=_string,
    generateName=_string,
    namespace=_string,
    uid=_string,
    labels=_values(_string),
    annotations=_values(_string),
    ownerReferences=_items(_fields(apiVersion=_string, kind=_string, name=_string, uid=_string, controller=_boolean)),
    finalizers=_items(_string),
    creationTimestamp=_string,
    deletionTimestamp=_string,
)
_RESOURCES = _fields(
    limits=_values(_quantity),
    requests=_values(_quantity),
    claims=_items(_fields(name=_string, request=_string)),
)
_REFERENCE = _fields(name=_string, key=_string)
_CONTAINER = _fields(
    name=_string,
    image=_string,
    restartPolicy=_string,
    command=_items(_string),
    args=_items(_string),
    env=_items(
        _fields(
            name=_string,
            value=_string,
            valueFrom=_fields(configMapKeyRef=_REFERENCE, secretKeyRef=_REFERENCE, fieldRef=_OBJECT),
        )
    ),
    envFrom=_items(_fields(prefix=_string, configMapRef=_REFERENCE, secretRef=_REFERENCE)),
    resources=_RESOURCES,
    volumeMounts=_items(_fields(name=_string, mountPath=_string)),
    securityContext=_fields(privileged=_boolean),
)
_POD_SPEC = _fields(
    schedulerName=_string,
    nodeName=_string,
    runtimeClassName=_string,
    nodeSelector=_values(_string),
    containers=_items(_CONTAINER),
    initContainers=_items(_CONTAINER),
    ephemeralContainers=_items(_CONTAINER),
    resources=_RESOURCES,
    resourceClaims=_items(_fields(name=_string, resourceClaimName=_string, resourceClaimTemplateName=_string)),
    volumes=_items(_fields(name=_string, configMap=_REFERENCE, hostPath=_fields(path=_string))),
    tolerations=_items(_OBJECT),
    schedulingGates=_items(_OBJECT),
)
_POD = _fields(metadata=_METADATA, spec=_POD_SPEC, status=_OBJECT)
_WORKLOAD = _fields(metadata=_METADATA, spec=_fields(jobTemplate=_fields(spec=_OBJECT)), status=_OBJECT)
_FOREIGN_WORKLOAD = _fields(metadata=_METADATA)
_BIND_REQUEST = _fields(metadata=_METADATA, status=_OBJECT)  # its spec is validated by the model


def pod_faults(raw: Object) -> tuple[FieldError, ...]:
    """Return the type and size errors of a pod or of a pod template's content."""
    if raw.get("metadata") is None or raw.get("spec") is None:
        return (*_missing(raw, "metadata"), *_missing(raw, "spec"), *_POD(raw))
    return tuple(_POD(raw)) or _size_faults(raw["spec"])


def workload_faults(raw: Object) -> tuple[FieldError, ...]:
    """Return the type errors of a built-in workload, except in its pod template."""
    return (*_missing(raw, "metadata"), *_missing(raw, "spec"), *_WORKLOAD(raw))


def foreign_workload_faults(raw: Object) -> tuple[FieldError, ...]:
    """Return the same for an external kind, of which only the metadata is known."""
    return (*_missing(raw, "metadata"), *_FOREIGN_WORKLOAD(raw))


def bind_request_faults(raw: Object) -> tuple[FieldError, ...]:
    """Return the type errors of a BindRequest, except in its spec."""
    return (*_missing(raw, "metadata"), *_BIND_REQUEST(raw))


def is_deleting(raw: Object) -> bool:
    """Like ``meta.is_deleting``, for an object whose structure is unchecked."""
    metadata = raw.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))


def _size_faults(spec: Object) -> tuple[FieldError, ...]:
    """Return the size errors of a well-formed pod."""
    containers = [container for field in _CONTAINERS for container in spec.get(field) or ()]
    if len(containers) > MAX_CONTAINERS:
        message = f"must not have more than {MAX_CONTAINERS} containers of all kinds; split the pod"
        return (FieldError("structure/containers", "spec.containers", len(containers), message),)
    resources = 0
    for container in containers:
        of_container = container.get("resources")
        if of_container:
            resources += sum([len(of_container.get(part) or ()) for part in ("limits", "requests", "claims")])
    if resources > MAX_RESOURCES:
        message = f"must not have more than {MAX_RESOURCES} resources in all containers; remove those without a use"
        return (FieldError("structure/resources", "spec.containers", resources, message),)
    return ()


def _missing(raw: Object, name: str) -> Sequence[FieldError]:
    return (FieldError("structure/required", name, None, "is required"),) if raw.get(name) is None else _FITS
