"""Which values of NVIDIA_VISIBLE_DEVICES a container may set. Pure.

No value but ``void`` and ``none`` may be set by hand, also beside a GPU: it would take precedence over the device
plugin's. Exception: the container of a share takes its value from the share's own ConfigMap. Which containers have a
GPU is decided in ``bowline.plugins.visible_devices``.
"""

from collections.abc import Iterator
from typing import Final

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.gpu_share import configmap_prefix, is_generated, wants_share
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.plugins.visible_devices import HARMLESS, ContainerRef, is_empty

VALUE: Final = Rule(
    "device_access/value",
    "plugin device_access: an entry `NVIDIA_VISIBLE_DEVICES` is not `void` or `none`",
    cause=DenialCause.FORBIDDEN,
)
VALUE_FROM: Final = Rule(
    "device_access/value-from",
    "plugin device_access: an entry `NVIDIA_VISIBLE_DEVICES` has a `valueFrom`",
    cause=DenialCause.FORBIDDEN,
)
CONFIGMAP_PREFIX: Final = Rule(
    "device_access/configmap-prefix",
    "plugin device_access: a share's `runai/shared-gpu-configmap` was chosen by its author, not generated",
    cause=DenialCause.FORBIDDEN,
)
ENV_FROM: Final = Rule(
    "device_access/env-from",
    "plugin device_access: a container with a GPU has an `envFrom` source whose prefix does not rule out "
    "`NVIDIA_VISIBLE_DEVICES`",
    severity=Severity.WARNS,
)
UNPREPARED: Final = Rule(
    "device_access/unprepared",
    "plugin device_access: a container without a GPU reaches the last hook without `void`: the mutating "
    "webhook was unavailable",
    cause=DenialCause.REQUIRED,
)

RULES: Final = (
    VALUE,
    VALUE_FROM,
    CONFIGMAP_PREFIX,
    ENV_FROM,
    UNPREPARED,
)


def prefix_errors(pod: Object) -> Iterator[FieldError]:
    """Yield an error if the author of a share chose the name of the ConfigMaps that list its devices."""
    prefix = configmap_prefix(pod) if wants_share(pod) else ""
    if prefix and not is_generated(prefix):
        message = "must not be chosen where device_access is on; remove the annotation, and a name is generated"
        path = annotation_path(names.SHARED_GPU_CONFIGMAP)
        yield FieldError(CONFIGMAP_PREFIX, path, prefix, message)


def container_errors(ref: ContainerRef) -> Iterator[FieldError]:
    """Yield errors for forbidden values, and warnings for ``envFrom`` sources whose content is not checked."""
    for index, entry in ref.entries:
        path = f"{ref.path}.env[{index}]"
        if is_empty(entry) and not ref.gpu:
            continue
        if entry.get("valueFrom"):
            if not ref.takes(entry["valueFrom"]):
                message = f'must be "void" or "none", not a reference: {_REMEDY[ref.gpu]}'
                yield FieldError(VALUE_FROM, f"{path}.valueFrom", entry["valueFrom"], message)
        elif entry.get("value") not in HARMLESS:
            message = f'must be "void" or "none": {_REMEDY[ref.gpu]}'
            yield FieldError(VALUE, f"{path}.value", entry.get("value"), message)
    if ref.gpu and not ref.entries:
        yield from _env_from_warnings(ref)


def hiding_errors(ref: ContainerRef) -> Iterator[FieldError]:
    """Yield an error for a container without a GPU that has no entry which hides the devices."""
    if not ref.sees_image:
        return
    message = (
        f"lacks {names.VISIBLE_DEVICES}=void, which the mutating webhook adds to a container without a GPU: it was "
        "unavailable or something changed the pod after it; try again, or add it yourself"
    )
    yield FieldError(UNPREPARED, f"{ref.path}.env", None, message)


_REMEDY = {
    True: f"the GPU that the container asks for sets {names.VISIBLE_DEVICES}; remove the entry",
    False: f"the container asks for no GPU; ask for one in its resources, or remove {names.VISIBLE_DEVICES}",
}


def _env_from_warnings(ref: ContainerRef) -> Iterator[FieldError]:
    for index, source in enumerate(ref.container.get("envFrom") or ()):
        prefix = source.get("prefix") or ""
        if names.VISIBLE_DEVICES.startswith(prefix):
            message = (
                f"would win over the container's own GPU if it holds {names.VISIBLE_DEVICES.removeprefix(prefix)}; "
                "its content is not checked"
            )
            yield FieldError(ENV_FROM, f"{ref.path}.envFrom[{index}]", None, message)
