"""The API server's rules for names, and for references inside a pod and between a workload and its pods. Pure.

In a cluster the API server applies them to pods and to Kubernetes' own workloads. Only rules that hold in every
supported version are here.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule

NAME: Final = Rule(
    "kubernetes/name",
    "a name, a label or the key of an annotation has characters or a length that the API server does not accept; "
    "only offline",
    invalid="labels: {team: a team}",
    valid="labels: {team: a-team}",
)
REFERENCE: Final = Rule(
    "kubernetes/reference",
    "a container refers to a volume or a claim that its pod does not have; only offline",
    cause=DenialCause.NOT_FOUND,
    invalid="resourceClaims: []\ncontainers: [{name: main, image: x, resources: {claims: [{name: gpu}]}}]",
    valid="resourceClaims: [{name: gpu, resourceClaimName: a}]\n"
    "containers: [{name: main, image: x, resources: {claims: [{name: gpu}]}}]",
    needs_whole=True,
)
DUPLICATE: Final = Rule(
    "kubernetes/duplicate",
    "two containers, volumes or claims of a pod have the same name; only offline",
    cause=DenialCause.DUPLICATE,
    invalid="volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]",
    valid="volumes: [{name: a, emptyDir: {}}, {name: b, emptyDir: {}}]",
)
MISSING: Final = Rule(
    "kubernetes/missing",
    "a container has no image, a volume no source, or a claim of a pod no ResourceClaim; only offline",
    cause=DenialCause.REQUIRED,
    invalid="containers: [{name: main}]",
    valid="containers: [{name: main, image: x}]",
    needs_whole=True,
)
VALUE: Final = Rule(
    "kubernetes/value",
    "a field of a pod has a value that the API server does not support; only offline",
    cause=DenialCause.NOT_SUPPORTED,
    invalid="restartPolicy: Sometimes",
    valid="restartPolicy: Never",
)
RESOURCE: Final = Rule(
    "kubernetes/resource",
    "a container requests a resource without a domain that is none of Kubernetes' own; only offline",
    cause=DenialCause.INVALID,
    invalid="limits: {gpus: 1}",
    valid="limits: {nvidia.com/gpu: 1}",
)
SELECTOR: Final = Rule(
    "kubernetes/selector",
    "the selector of a workload does not select the pods of its own template; only offline",
    needs_whole=True,
)
RULES: Final = (NAME, REFERENCE, DUPLICATE, MISSING, VALUE, RESOURCE, SELECTOR)

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_LABEL, _MAX_SUBDOMAIN, _MAX_CRON_JOB = 63, 253, 52
_MAX_ANNOTATIONS: Final = 256 * 1024
_SUBDOMAIN_TEXT: Final = (
    "must have only lower-case letters, digits, '-' and '.', with a letter or digit at either end"
)
_LABEL_TEXT: Final = (
    f"must have at most {_MAX_LABEL} lower-case letters, digits and '-', with a letter or digit at either end"
)
_VALUES: Final = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
}
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_NATIVE_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
# Names of these are DNS subdomains; other kinds have rules of their own.
_SUBDOMAIN_KINDS: Final = frozenset(
    {
        *("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"),
        *("ConfigMap", "Secret", "PersistentVolumeClaim", "ResourceClaim", "ResourceClaimTemplate"),
    }
)


def metadata_errors(kind: str, metadata: Any, path: str = "metadata") -> Iterator[FieldError]:
    """Yield the errors of an object's name, labels and annotations. ``kind``: empty for a pod template."""
    if not isinstance(metadata, dict):
        return
    name = metadata.get("name")
    if kind in _SUBDOMAIN_KINDS:
        longest = _MAX_CRON_JOB if kind == "CronJob" else _MAX_SUBDOMAIN
        if isinstance(name, str) and name and not (_SUBDOMAIN.fullmatch(name) and len(name) <= longest):
            yield FieldError(NAME, f"{path}.name", name, f"{_SUBDOMAIN_TEXT}, and at most {longest} characters")
        if kind and not name and not metadata.get("generateName"):
            yield FieldError(MISSING, f"{path}.name", None, "is required; or set generateName")
    labels, annotations = metadata.get("labels"), metadata.get("annotations")
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if not _is_qualified(key):
            yield FieldError(NAME, f"{path}.labels[{key}]", value, f"{_KEY_TEXT}; rename it")
        if isinstance(value, str) and value and not (_QUALIFIED.fullmatch(value) and len(value) <= _MAX_LABEL):
            message = (
                f"must have at most {_MAX_LABEL} letters, digits, '-', '_' and '.', with a letter or digit at either "
                "end; use an annotation for other text"
            )
            yield FieldError(NAME, f"{path}.labels[{key}]", value, message)
    size = 0
    for key, value in annotations.items() if isinstance(annotations, dict) else ():
        size += len(key.encode()) + (len(value.encode()) if isinstance(value, str) else 0)
        if not _is_qualified(key.lower()):
            yield FieldError(
                NAME, annotation_path(key).replace("metadata", path, 1), value, f"{_KEY_TEXT}; rename it"
            )
    if size > _MAX_ANNOTATIONS:
        yield FieldError(NAME, f"{path}.annotations", size, f"must have at most {_MAX_ANNOTATIONS} bytes in all")


_KEY_TEXT: Final = (
    "its key must be a name of at most 63 letters, digits, '-', '_' and '.', after an optional DNS name and '/'"
)


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= _MAX_SUBDOMAIN):
        return False
    return len(name) <= _MAX_LABEL and _QUALIFIED.fullmatch(name) is not None


def pod_spec_errors(spec: Object, other_volumes: Sequence[str] = ()) -> Iterator[FieldError]:
    """Yield the errors of a pod spec whose structure is valid; paths begin with ``spec``.

    ``other_volumes``: of the pod, from elsewhere.
    """
    volumes, claims = _entries(spec, "volumes"), _entries(spec, "resourceClaims")
    containers = [
        (f"spec.{field}[{index}]", container)
        for field in ("initContainers", "containers")
        for index, container in enumerate(_entries(spec, field))
    ]
    yield from _unique_names([(f"spec.volumes[{index}]", volume) for index, volume in enumerate(volumes)])
    yield from _unique_names(containers)
    yield from _unique_names([(f"spec.resourceClaims[{index}]", claim) for index, claim in enumerate(claims)])
    if spec.get("containers") == []:
        yield FieldError(MISSING, "spec.containers", None, "is required: a pod has at least one container")
    for field, values in _VALUES.items():
        if spec.get(field) is not None and spec[field] not in values:
            yield FieldError(VALUE, f"spec.{field}", spec[field], f"must be {', '.join(values[:-1])} or {values[-1]}")
    for index, volume in enumerate(volumes):
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if not sources:
            yield FieldError(MISSING, f"spec.volumes[{index}]", volume.get("name"), "must have a source")
        elif len(sources) > 1:
            message = f"must have one source, not {' and '.join(sorted(sources))}"
            yield FieldError(VALUE, f"spec.volumes[{index}]", volume.get("name"), message)
    for index, claim in enumerate(claims):
        given = [key for key in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(key)]
        if len(given) != 1:
            message = "must have either resourceClaimName or resourceClaimTemplateName"
            yield FieldError(MISSING, f"spec.resourceClaims[{index}]", claim.get("name"), message)
    yield from _pod_level_errors(spec.get("resources") or {})
    volume_names, claim_names = [*_names(volumes), *other_volumes], _names(claims)
    for path, container in containers:
        yield from _container_errors(path, container, volume_names, claim_names)


def _pod_level_errors(resources: Object) -> Iterator[FieldError]:
    for part in ("limits", "requests"):
        for resource, value in (resources.get(part) or {}).items():
            if resource not in ("cpu", "memory") and not resource.startswith("hugepages-"):
                message = "must be cpu, memory or hugepages-SIZE: other resources are those of a container"
                yield FieldError(RESOURCE, f"spec.resources.{part}[{resource}]", value, message)


def _container_errors(
    path: str, container: Object, volumes: Sequence[str], claims: Sequence[str]
) -> Iterator[FieldError]:
    if not container.get("image"):
        yield FieldError(MISSING, f"{path}.image", container.get("image"), "is required")
    policy = container.get("imagePullPolicy")
    if policy and policy not in _PULL_POLICIES:
        yield FieldError(VALUE, f"{path}.imagePullPolicy", policy, f"must be one of {', '.join(_PULL_POLICIES)}")
    mount_paths: set[str] = set()
    for index, mount in enumerate(_entries(container, "volumeMounts")):
        place = f"{path}.volumeMounts[{index}]"
        if mount.get("name") and mount["name"] not in volumes:
            yield FieldError(
                REFERENCE, f"{place}.name", mount["name"], f"must be a volume of the pod{_listed(volumes)}"
            )
        if mount.get("mountPath") in mount_paths:
            yield FieldError(DUPLICATE, f"{place}.mountPath", mount["mountPath"], "is mounted twice; keep one")
        mount_paths.add(str(mount.get("mountPath")))
    yield from _resource_errors(path, container.get("resources") or {}, claims)
    for index, port in enumerate(_entries(container, "ports")):
        number = port.get("containerPort")
        if isinstance(number, int) and not 0 < number < 2**16:
            yield FieldError(VALUE, f"{path}.ports[{index}].containerPort", number, "must be from 1 to 65535")


def _resource_errors(path: str, resources: Object, claims: Sequence[str]) -> Iterator[FieldError]:
    for index, claim in enumerate(_entries(resources, "claims")):
        if claim.get("name") and claim["name"] not in claims:
            message = f"must be an entry of the pod's resourceClaims{_listed(claims)}"
            yield FieldError(REFERENCE, f"{path}.resources.claims[{index}].name", claim["name"], message)
    for part in ("limits", "requests"):
        for resource, value in (resources.get(part) or {}).items():
            if "/" not in resource and resource not in _NATIVE_RESOURCES and not resource.startswith("hugepages-"):
                message = "must be cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a domain and '/'"
                yield FieldError(RESOURCE, f"{path}.resources.{part}[{resource}]", value, message)


def workload_errors(kind: str, raw: Object) -> Iterator[FieldError]:
    """Yield the errors of one of Kubernetes' own workloads: its selector, and the restart policy of its pods."""
    spec = raw.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    if kind == "CronJob" and isinstance(spec, dict):
        job = spec.get("jobTemplate") or {}
        template = (job.get("spec") or {}).get("template") if isinstance(job, dict) else None
    if not isinstance(spec, dict) or not isinstance(template, dict):
        return
    place = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    policy = (template.get("spec") or {}).get("restartPolicy")
    if kind in ("Job", "CronJob"):
        if policy in (None, "Always"):
            message = "must be OnFailure or Never: a job's containers are not restarted for ever"
            yield FieldError(VALUE, f"{place}.spec.restartPolicy", policy, message)
        return
    if policy not in (None, "Always"):
        yield FieldError(VALUE, f"{place}.spec.restartPolicy", policy, "must be Always in this kind")
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector")
    if not isinstance(selector, dict) or not isinstance(labels, dict):
        return
    wanted = selector if kind == "ReplicationController" else selector.get("matchLabels") or {}
    missing = [key for key, value in wanted.items() if labels.get(key) != value]
    if missing:
        message = (
            f"must select the pods of the template: set the template's label {missing[0]} to {wanted[missing[0]]}"
        )
        yield FieldError(SELECTOR, "spec.selector", missing[0], message)
    elif not wanted and not selector.get("matchExpressions"):
        yield FieldError(SELECTOR, "spec.selector", None, "must not be empty: set matchLabels")


def _unique_names(entries: Sequence[tuple[str, Object]]) -> Iterator[FieldError]:
    names: set[str] = set()
    for path, entry in entries:
        name = entry.get("name")
        if not isinstance(name, str):
            continue
        if not (_DNS_LABEL.fullmatch(name) and len(name) <= _MAX_LABEL):
            yield FieldError(NAME, f"{path}.name", name, _LABEL_TEXT)
        if name in names:
            yield FieldError(DUPLICATE, f"{path}.name", name, "is given twice; rename one of them")
        names.add(name)


def _entries(obj: Object, field: str) -> list[Any]:
    entries = obj.get(field)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _names(entries: Sequence[Object]) -> list[str]:
    return [entry["name"] for entry in entries if isinstance(entry.get("name"), str)]


def _listed(names: Sequence[str]) -> str:
    return f": {', '.join(names[:5])}" if names else ", which has none"
