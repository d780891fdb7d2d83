"""The labels and annotations that say who uses which GPU, and what names a device. Only Bowline may write them. Pure.

The API server itself enforces this, by the chart's policy of devices, for pods of every scheduler and also while the
webhook is unavailable; the policy's CEL is generated from the values here. `bowline lint` applies them to new pods.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import CelForm, DenialCause, Rule


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """The keys in ``exact``, those with one of ``prefixes``, those that are or have one of ``domains`` or a domain
    below it, and those with ``prefix`` and none of ``free_suffixes``.
    """

    exact: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    prefix: str = ""
    free_suffixes: tuple[str, ...] = ()
    _expression: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        # One search: templates may have thousands of keys.
        forms = [f"^{re.escape(key)}\\Z" for key in self.exact] + [f"^{re.escape(key)}" for key in self.prefixes]
        forms += [rf"(?:^|\.){re.escape(domain)}(?:/|\Z)" for domain in self.domains]
        if self.prefix:
            free = "|".join(map(re.escape, self.free_suffixes))
            forms.append(f"^(?!.*(?:{free})\\Z){re.escape(self.prefix)}")
        object.__setattr__(self, "_expression", re.compile("|".join(forms), re.DOTALL))

    def covers(self, key: str) -> bool:
        """Return whether the key is one of them."""
        return self._expression.search(key) is not None

    @property
    def cel(self) -> str:
        """The same about a key ``k``, in CEL."""
        forms = [f"k == '{key}'" for key in self.exact] + [f"k.startsWith('{prefix}')" for prefix in self.prefixes]
        forms += [f"('.' + k + '/').contains('.{domain}/')" for domain in self.domains]
        if self.prefix:
            free = " || ".join(f"k.endsWith('{suffix}')" for suffix in self.free_suffixes)
            forms.append(f"(k.startsWith('{self.prefix}') && !({free}))")
        return f"({' || '.join(forms)})"


LABELS: Final = KeyPattern(
    exact=(names.LABEL_GPU_GROUP, names.LABEL_GPU_SHARING), prefixes=(f"{names.LABEL_GPU_GROUP}/",)
)
# What container runtimes, their NRI plugins and NVIDIA's GPU fractioning read as names of devices, for a pod or for
# one container; and what KAI-Scheduler does not know of the latter.
ANNOTATIONS: Final = KeyPattern(
    prefixes=names.DEVICE_KEY_PREFIXES,
    domains=names.DEVICE_DOMAINS,
    prefix=names.NV_CONTAINER,
    free_suffixes=names.NV_AUTHOR,
)
# What schedulers, or plugins after the bind, read as a fact about the devices of a bound pod.
FACTS: Final = KeyPattern(
    exact=("received-resource-type", names.PREPARED_FOR, names.LABELLED_FOR, names.ANNOTATION_GPU_PORTION),
    prefixes=(names.RESOURCE_MIG_PREFIX, "kai.scheduler/numa-"),
)
# Of labels, and of annotations: more make the guard expensive.
MAX_KEYS: Final = 256
# One device, as a reservation reports it: the UUID of a GPU or of a MIG instance, or an index. Container runtimes
# read the words as every device or none, and a comma as a list.
_DEVICE: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NO_DEVICES: Final = ("all", "none", "void")


def is_device(text: str) -> bool:
    """Return whether the text names one device."""
    return re.fullmatch(_DEVICE, text) is not None and text.lower() not in _NO_DEVICES


def device_cel(text: str) -> str:
    """Return the same as CEL about an expression."""
    words = ", ".join(f"'{word}'" for word in _NO_DEVICES)
    return f"({text}.matches('^{_DEVICE}$') && !({text}.lowerAscii() in [{words}]))"


GUARDED_LABEL: Final = Rule(
    "gpu_sharing/guarded-label",
    f"a user sets `{names.LABEL_GPU_GROUP}`, `{names.LABEL_GPU_GROUP}/...` or `{names.LABEL_GPU_SHARING}` on a pod "
    "of any scheduler: these labels say who uses which shared GPU; enforced by the policy `policy.devices`, and by "
    "the webhook in templates of workloads",
    cause=DenialCause.FORBIDDEN,
    text="only Bowline may set it: it says who uses which shared GPU; leave it out of a new pod (also of one made "
    "from another pod)",
    invalid=f"labels: {{{names.LABEL_GPU_GROUP}: a}}",
    valid="labels: {app: a}",
    cel=CelForm(f"variables.labelsChanged.exists(k, {LABELS.cel})", "k"),
)
GUARDED_ANNOTATION: Final = Rule(
    "gpu_sharing/guarded-annotation",
    f"a user sets `{names.NV_CONTAINER}<container>{names.NV_DEVICES}` on a pod of any scheduler, or an annotation by "
    "which a container runtime or an NRI plugin gives a container devices "
    f"({', '.join(f'`{domain}/...`' for domain in names.DEVICE_DOMAINS)}, also alone and below these domains, and "
    f"{', '.join(f'`{prefix}...`' for prefix in names.DEVICE_KEY_PREFIXES)}); enforced by the policy "
    "`policy.devices`, and by the webhook in templates of workloads",
    cause=DenialCause.FORBIDDEN,
    text="only Bowline may set it: it gives a container GPUs; leave it out of a new pod (also of one made from "
    "another pod)",
    invalid=f"annotations: {{{names.NV_CONTAINER}main{names.NV_DEVICES}: GPU-1}}",
    valid="annotations: {team: a}",
    cel=CelForm(f"variables.annotationsChanged.exists(k, {ANNOTATIONS.cel})", "k"),
)
FRACTION_SUFFIX: Final = Rule(
    "gpu_sharing/fraction-suffix",
    f"an annotation `{names.NV_CONTAINER}<container>` of a pod of any scheduler has another suffix than "
    f"{', '.join(f'`{suffix}`' for suffix in (*names.NV_AUTHOR, names.NV_DEVICES))}; enforced by the policy "
    "`policy.devices`, and by the webhook in templates of workloads",
    cause=DenialCause.NOT_SUPPORTED,
    text="is unknown to KAI-Scheduler, which counts a pod that has it as one without a GPU; after the container's "
    f"name may follow {', '.join(names.NV_AUTHOR)}",
    invalid=f'annotations: {{{names.NV_CONTAINER}main.gpu-compute.request: "0.5"}}',
    valid=f'annotations: {{{names.NV_CONTAINER}main.gpu-memory.request: 8Gi, gpu-memory: "8192"}}',
)
GUARDED_FACT: Final = Rule(
    "gpu_sharing/guarded-fact",
    f"a user sets an annotation `{names.RESOURCE_MIG_PREFIX}...`, `kai.scheduler/numa-...`, "
    "`received-resource-type`, "
    f"`{names.PREPARED_FOR}`, `{names.LABELLED_FOR}` or `{names.ANNOTATION_GPU_PORTION}`, or one that an enabled "
    "plugin sets by the Binding, on a pod of any scheduler: schedulers read them as facts about a pod's devices; "
    "enforced by the policy `policy.devices`, and by the webhook in templates of workloads",
    cause=DenialCause.FORBIDDEN,
    text="only Bowline may set it: it says which devices the pod has; leave it out of a new pod (also of one made "
    "from another pod)",
    invalid='annotations: {nvidia.com/mig-1g.5gb: "0"}',
    valid="annotations: {team: a}",
    cel=CelForm(f"variables.annotationsChanged.exists(k, {FACTS.cel})", "k"),
)
MANY_KEYS: Final = Rule(
    "gpu_sharing/many-keys",
    f"a pod of any scheduler has more than {MAX_KEYS} labels or annotations; enforced by the policy "
    "`policy.devices`, and by the webhook in templates of workloads",
    cause=DenialCause.TOO_MANY,
    text=f"a pod has at most {MAX_KEYS}, so that the guard of shared GPUs stays cheap; remove some",
)
RULES: Final = (GUARDED_LABEL, GUARDED_ANNOTATION, FRACTION_SUFFIX, GUARDED_FACT, MANY_KEYS)


def _device_errors(annotations: Object) -> Iterator[FieldError]:
    """Yield an error for each annotation that names devices: no author of a pod may set one."""
    for key in filter(ANNOTATIONS.covers, annotations):
        is_unknown = key.startswith(names.NV_CONTAINER) and not key.endswith(names.NV_DEVICES)
        rule = FRACTION_SUFFIX if is_unknown else GUARDED_ANNOTATION
        yield FieldError(rule, annotation_path(key), annotations[key], rule.message)


def guard_errors(metadata: Object, of_plugins: Collection[str] = ()) -> Iterator[FieldError]:
    """Yield what the policy denies to every user in the metadata of a new pod; well-formed or not.

    ``of_plugins``: the annotations that enabled plugins set by the Binding, which the policy guards as facts.
    """
    for part, pattern, rule in (("labels", LABELS, GUARDED_LABEL), ("annotations", FACTS, GUARDED_FACT)):
        entries = metadata.get(part)
        if not isinstance(entries, dict):
            continue
        if len(entries) > MAX_KEYS:
            yield FieldError(MANY_KEYS, f"metadata.{part}", len(entries), MANY_KEYS.message)
            continue
        if part == "annotations":
            yield from _device_errors(entries)
        keys = [key for key in entries if pattern.covers(key) or (pattern is FACTS and key in of_plugins)]
        for key in keys:
            path = annotation_path(key) if part == "annotations" else f"metadata.{part}[{key}]"
            yield FieldError(rule, path, entries[key], rule.message)
