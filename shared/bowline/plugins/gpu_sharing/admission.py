"""What a sharing pod needs before it is stored: the names of its two ConfigMaps, and references to them.

Pure. The content of the ConfigMaps is not known before the bind; the names are fixed here, because a container's
environment is immutable. Idempotent: the annotation keeps the name generated first. Generated names are derived from
the request's UID (``seed``), so that a repeated review has the same result.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.gpu_share import (
    GENERATED_LENGTH,
    GENERATED_LETTERS,
    GENERATED_TAIL,
    ShareTarget,
    capabilities_map,
    configmap_prefix,
    direct_env_map,
    map_volume,
    share_target,
    wants_share,
)
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.framework.config import Settings
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.mutable import MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin
from bowline.plugins.gpu_sharing import guards
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.other_containers import (
    OTHER_CONTAINER,
    debuggers,
    hides_devices,
    other_container_errors,
    other_containers,
)
from bowline.plugins.gpu_sharing.rules import request_error
from bowline.plugins.visible_devices import hide_devices

CONFIGMAP_PREFIX: Final = Rule(
    "gpu_sharing/configmap-prefix",
    "the value of `runai/shared-gpu-configmap` is no valid prefix of a ConfigMap's name, or makes a volume's "
    "name too long; or a workload's template has the annotation: its pods would share one ConfigMap",
    cause=DenialCause.INVALID,
    invalid='annotations: {gpu-fraction: "0.5", runai/shared-gpu-configmap: Not_A_Name}',
    valid='annotations: {gpu-fraction: "0.5"}',
)
UNPREPARED: Final = Rule(
    "gpu_sharing/unprepared",
    "a sharing pod reaches the validating webhook unmutated: mutation was skipped or undone",
    cause=DenialCause.REQUIRED,
)

ENVIRONMENT: Final = Rule(
    "gpu_sharing/environment",
    "the container of a share sets a variable that the share sets (`NVIDIA_VISIBLE_DEVICES`, `GPU_PORTION`, "
    "`RUNAI_NUM_OF_GPUS`, with plugin hami_core `CUDA_DEVICE_MEMORY_LIMIT`): the entry is replaced",
    severity=Severity.WARNS,
    invalid='annotations: {gpu-fraction: "0.5"}\n'
    "containers: [{name: main, image: example.com/main, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]",
    valid='annotations: {gpu-fraction: "0.5"}',
)
# Of a label's value, and of the name part of a key.
MAX_LABEL: Final = 63
# The longest container name with which the annotation's key is valid.
MAX_NRI_NAME: Final = MAX_LABEL - len(names.NRI_CONTAINER.partition("/")[2])

RULES: Final = (
    CONFIGMAP_PREFIX,
    UNPREPARED,
    OTHER_CONTAINER,
    ENVIRONMENT,
)


# In the order in which they are written.
SHARE_ENV = (names.VISIBLE_DEVICES, names.NUM_OF_GPUS, names.GPU_PORTION)
# With the limit that HAMi core reads.
LIMITED_ENV = (*SHARE_ENV, names.DEVICE_MEMORY_LIMIT)
# Entries that warnings name.
_LISTED = 3
MAX_SUBDOMAIN = 253
# The API's default mode of a ConfigMap volume.
_DEFAULT_MODE = 0o644
# The letter of each byte.
_LETTERS = (GENERATED_LETTERS * 10)[:256].encode()
_PLACE = re.compile(r"-i?[0-9]+")
_SUBDOMAIN = re.compile(names.DNS_SUBDOMAIN)
_NOT_IN_NAME = re.compile(r"[^a-z0-9.-]+")


class GpuSharingAdmission(AdmissionPlugin[GpuSharingConfig]):
    """The methods of plugin ``gpu_sharing`` that admission calls."""

    name = "gpu_sharing"
    rules = (*RULES, *guards.RULES)
    after = ("gpu_request",)
    # The rights on reservation pods end at their namespace, which has its own part of the chart.
    access = Access(
        rules=(
            AccessRule("configmaps", ("get", "create", "delete")),  # those of a share are in its pod's namespace
            AccessRule("clusterpolicies", ("list", "watch"), group="nvidia.com"),
        ),
        # Of reservation pods; of their users.
        pod_annotations=(
            names.ANNOTATION_LAST_JOINED,
            names.ANNOTATION_EXPECTED_DEVICES,
            names.LABELLED_FOR,
            names.ANNOTATION_GPU_PORTION,
        ),
        pod_labels=(names.LABEL_GPU_GROUP, names.LABEL_GPU_SHARING),
    )

    def __init__(self, args: GpuSharingConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._sharing = settings.gpu_sharing
        self._hides_devices = hides_devices(settings)
        is_limited = {entry.name: entry.enabled for entry in settings.plugins}.get("hami_core", False)
        self._variables = LIMITED_ENV if is_limited else SHARE_ENV

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        """Add the names of the pod's ConfigMaps and the container's references to them; hide devices from the
        other containers.
        """
        if self._sharing.enabled:
            prepare(pod, info.request_uid, self._variables)
        if self._hides_devices:
            hide_devices(pod, other_containers(pod.raw))

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Deny in a template what only Bowline may set in its pods, an invalid ConfigMap prefix, devices of other
        containers and, at the final hook, a pod that was not mutated.
        """
        if old is not None or not self._sharing.enabled:
            return
        # Of pods the policy of devices judges them, which knows the trusted users, groups and namespaces.
        if info.kind != "Pod":
            yield from guards.guard_errors(pod["metadata"])
            yield from template_errors(pod, info.request_uid)
        yield from share_errors(pod, self._variables, is_final=info.is_validating_webhook)
        if self._hides_devices:
            refs = other_containers(pod)
            yield from other_container_errors(refs, is_final=info.is_validating_webhook)

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        if self._hides_devices:
            hide_devices(pod, debuggers(pod.raw, old))

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        if not self._hides_devices:
            return ()
        return other_container_errors(debuggers(pod, old), is_final=info.is_validating_webhook)

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        """Return whether anything may be written; for an invalid request nothing is, so there is nothing to roll
        back.
        """
        return request.spec is not None and request.is_share and request_error(request.spec) is None


def prepare(pod: MutablePod, seed: str, variables: Sequence[str] = SHARE_ENV) -> None:
    """Mutate the share's container; a pod without a share, or without that container, is not changed."""
    target = share_target(pod.raw) if wants_share(pod.raw) else None
    if target is None:
        return
    _pin(pod, target)
    prefix = configmap_prefix(pod.raw) or generated_prefix(pod.raw, target, seed)
    capabilities = capabilities_map(prefix, target)
    if configmap_prefix(pod.raw):
        _remove_former(pod, prefix, capabilities)
    else:
        pod.set_annotation(names.SHARED_GPU_CONFIGMAP, prefix)
    container = ("spec", target.field, target.index)
    env = target.container.get("env") or []
    if not _has_env(env, capabilities, variables):
        replaced = [index for index, entry in enumerate(env) if entry.get("name") in variables]
        _warn_of_replaced(pod, target, [i for i in replaced if env[i] != _env_entry(env[i]["name"], capabilities)])
        if replaced:
            _remove(pod, set(replaced), *container, "env")
        pod.extend([_env_entry(name, capabilities) for name in variables], *container, "env")
    if not _has_env_from(target, capabilities):
        pod.append(_direct(capabilities), *container, "envFrom")
    if not _has_volume(pod.raw, capabilities):
        pod.append(_volume(capabilities), "spec", "volumes")


def _warn_of_replaced(pod: MutablePod, target: ShareTarget, indices: Sequence[int]) -> None:
    """Warn about entries that the author wrote."""
    for index in indices[:_LISTED]:
        entry = target.container["env"][index]
        field = "value" if "value" in entry else "valueFrom"
        path = f"spec.{target.field}[{target.index}].env[{index}].{field}"
        message = f"{entry['name']} is replaced: the share sets it for its own device; remove the entry"
        pod.warn(FieldError(ENVIRONMENT, path, entry.get(field), message))


def generated_prefix(pod: Object, target: ShareTarget, seed: str) -> str:
    """Return ``<base>-<7 characters>-shared-gpu``; every name derived from it is valid and short enough."""
    metadata = pod["metadata"]
    owners = metadata.get("ownerReferences") or [{}]
    own_name = metadata.get("name") or (metadata.get("generateName") or "").removesuffix("-")
    base = owners[0].get("name") or own_name
    # The longest derived name that must fit a label: the volume's, or the slightly longer one with "-evar".
    room = MAX_LABEL - len(f"-{'x' * GENERATED_LENGTH}-{GENERATED_TAIL}-{target.suffix}-evar")
    return f"{_as_name(base, room)}-{_random_letters(seed, metadata)}-{GENERATED_TAIL}"


def share_errors(pod: Object, variables: Sequence[str] = SHARE_ENV, *, is_final: bool) -> Iterator[FieldError]:
    """Yield the errors of a share's preparation: a prefix that forms no valid names, else what a final pod lacks."""
    target = share_target(pod) if wants_share(pod) else None
    if target is None:
        return
    prefix = configmap_prefix(pod)
    capabilities = capabilities_map(prefix, target)
    wrong = _prefix_rule(prefix, capabilities) if prefix else ""
    if wrong:
        message = f"{wrong}; remove the annotation, and a name is generated"
        yield FieldError(CONFIGMAP_PREFIX, annotation_path(names.SHARED_GPU_CONFIGMAP), prefix, message)
    elif is_final:
        yield from _unprepared_errors(pod, target, prefix, variables)


def template_errors(pod: Object, seed: str) -> Iterator[FieldError]:
    """Yield the error of a prepared template that names ConfigMaps itself: each of its pods needs its own."""
    target = share_target(pod) if wants_share(pod) else None
    prefix = configmap_prefix(pod)
    if target is not None and prefix and prefix != generated_prefix(pod, target, seed):
        message = "would be the same for all pods of this template, and each needs its own; remove the annotation"
        yield FieldError(CONFIGMAP_PREFIX, annotation_path(names.SHARED_GPU_CONFIGMAP), prefix, message)


def nri_error(pod: Object) -> str:
    """Return why no annotation can name the share's container, as in NRI mode; empty if one can."""
    target = share_target(pod) if wants_share(pod) else None
    if target is None or len(_name(target)) <= MAX_NRI_NAME:
        return ""
    return (
        f'spec.{target.field}[{target.index}].name: "{_name(target)}": must have at most {MAX_NRI_NAME} characters, '
        f"because the key of the annotation that gives it its GPU, {names.NRI_CONTAINER}<name>, ends with it; "
        "shorten it and create the pod again"
    )


def _prefix_rule(prefix: str, capabilities: str) -> str:
    """Return the rule that a ConfigMap or volume of this name would break; empty if it breaks none."""
    direct = direct_env_map(capabilities)
    if len(direct) > MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(direct):
        return "must be the beginning of a ConfigMap's name: lower-case letters, digits, '-' and '.'"
    excess = len(map_volume(capabilities)) - MAX_LABEL
    if excess > 0:
        return f"must have at most {len(prefix) - excess} characters, because a volume is named after it"
    return ""


def _unprepared_errors(
    pod: Object, target: ShareTarget, prefix: str, variables: Sequence[str]
) -> Iterator[FieldError]:
    """Yield the error of a sharing pod that would start without its share's environment."""
    capabilities = capabilities_map(prefix, target)
    missing = [
        part
        for part, is_present in (
            (f"the annotation {names.SHARED_GPU_CONFIGMAP}", bool(prefix)),
            ("the environment", _has_env(target.container.get("env") or [], capabilities, variables)),
            ("envFrom", _has_env_from(target, capabilities)),
            ("the volume", _has_volume(pod, capabilities)),
        )
        if not is_present
    ]
    if missing:
        message = (
            f"the container of the GPU share lacks {', '.join(missing)}, which the mutating webhook adds: it was "
            "unavailable or something changed the pod after it; create the pod again"
        )
        yield FieldError(UNPREPARED, f"spec.{target.field}[{target.index}]", _name(target), message)


def _name(target: ShareTarget) -> str:
    return str(target.container.get("name") or "")


def _env_entry(name: str, capabilities: str) -> dict[str, Any]:
    # Optional, so that pods prepared while hami_core is enabled still start after it has been disabled.
    optional = {"optional": True} if name == names.DEVICE_MEMORY_LIMIT else {}
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": capabilities, "key": name, **optional}}}


def _direct(capabilities: str) -> dict[str, Any]:
    return {"configMapRef": {"name": direct_env_map(capabilities), "optional": False}}


def _volume(capabilities: str) -> dict[str, Any]:
    return {"name": map_volume(capabilities), "configMap": {"name": capabilities, "defaultMode": _DEFAULT_MODE}}


def _pin(pod: MutablePod, target: ShareTarget) -> None:
    """Record the share's container by name: a webhook that runs later may insert another one before it."""
    name = _name(target)
    if name and names.GPU_FRACTION_CONTAINER not in pod.annotations:
        pod.set_annotation(names.GPU_FRACTION_CONTAINER, name)


def _remove_former(pod: MutablePod, prefix: str, capabilities: str) -> None:
    """Remove what an earlier review has added for another container index.

    The ConfigMap of that index is never written, and the kubelet would wait for it indefinitely. A reference to the
    current ConfigMap is user-written in other containers: it is kept, and denied by the validation.
    """
    spec = pod.raw["spec"]
    arrays: list[tuple[str | int, ...]] = [("volumes",)]
    for field in ("initContainers", "containers"):
        for index in range(len(spec.get(field) or ())):
            arrays += [(field, index, "env"), (field, index, "envFrom")]
    for array in arrays:
        former = [i for i, entry in enumerate(_entries(pod, array)) if _is_former(entry, prefix, capabilities)]
        if former:
            _remove(pod, set(former), "spec", *array)


def _is_former(entry: Object, prefix: str, capabilities: str) -> bool:
    source = (
        entry.get("configMapRef") or entry.get("configMap") or (entry.get("valueFrom") or {}).get("configMapKeyRef")
    )
    name = str((source or {}).get("name") or "").removesuffix("-evar")
    if name == capabilities or not name.startswith(prefix) or not _PLACE.fullmatch(name, len(prefix)):
        return False
    return entry in (
        _direct(name),
        _volume(name),
        *(_env_entry(key, name) for key in LIMITED_ENV),
    )


def _remove(pod: MutablePod, indices: Collection[int], *array: str | int) -> None:
    """Remove entries of an array by replacing it. The API server copies the array for each operation on it."""
    pod.set([entry for index, entry in enumerate(_entries(pod, array[1:])) if index not in indices], *array)


def _entries(pod: MutablePod, array: Iterable[str | int]) -> Any:
    """Return the entries of an array in the pod's spec."""
    entries: Any = pod.raw["spec"]
    for token in array:
        entries = entries[token] if isinstance(token, int) else entries.get(token) or ()
    return entries


def _has_env(env: Sequence[Object], capabilities: str, variables: Sequence[str]) -> bool:
    """Return whether each variable exists once and refers to its key; of duplicates the last one takes effect."""
    entries = [entry for entry in env if entry.get("name") in variables]
    return len(entries) == len(variables) == len({entry["name"] for entry in entries}) and all(
        _refers(entry, capabilities) for entry in entries
    )


def _refers(entry: Object, capabilities: str) -> bool:
    reference = (entry.get("valueFrom") or {}).get("configMapKeyRef") or {}
    return bool(reference.get("name") == capabilities and reference.get("key") == entry["name"])


def _has_env_from(target: ShareTarget, capabilities: str) -> bool:
    direct = direct_env_map(capabilities)
    return any(
        (source.get("configMapRef") or {}).get("name") == direct and not source.get("prefix")
        for source in target.container.get("envFrom") or ()
    )


def _has_volume(pod: Object, capabilities: str) -> bool:
    return any(
        (volume.get("configMap") or {}).get("name") == capabilities for volume in pod["spec"].get("volumes") or ()
    )


def _as_name(base: str, room: int) -> str:
    """Return the base as a prefix of a DNS subdomain, truncated to ``room``. Names of owners may contain other
    characters.
    """
    name = _NOT_IN_NAME.sub("-", base.lower())[:room]
    return ".".join(filter(None, [label.strip("-") for label in name.split(".")])) or "pod"


def _random_letters(seed: str, metadata: Object) -> str:
    """Return seven characters derived from the seed and the pod's name: stable within a review, distinct across
    reviews.
    """
    unique = "/".join((seed, metadata.get("namespace") or "", metadata.get("name") or ""))
    return hashlib.sha256(unique.encode()).digest()[:GENERATED_LENGTH].translate(_LETTERS).decode()
