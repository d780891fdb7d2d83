"""The rules of admission: what each means, with an invalid and a valid example. Data, for ``--explain`` and docs.

An example is a part of a manifest in YAML: ``annotations``, ``labels``, ``limits`` and ``requests`` (of the first
container), and any other field of a pod's spec; with ``podName``, the spec of a BindRequest. Rules without examples
depend on what a manifest does not show: the cluster, a former version of the object, or another component.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. ``denies``: D denies, W warns, DW does either."""

    denies: str
    meaning: str
    invalid: str = ""
    valid: str = ""


_HALF: Final = 'annotations: {gpu-fraction: "0.5"}'
_CLAIM_A: Final = "{name: a, allocation: {devices: {results: [{request: r, driver: d, pool: n, device: d0}]}}}"
_ONE_GPU: Final = "limits: {nvidia.com/gpu: 1}"

RULES: Final[Mapping[str, Rule]] = {
    "gpu_request/fraction-format": Rule(
        "D",
        "`gpu-fraction` is not a decimal number (`0.5`, `.5`, `5e-1`) but, for example, empty, hex, `nan`, `inf` "
        "or with a "
        "unit, percent sign or space",
        'annotations: {gpu-fraction: "50%"}',
        _HALF,
    ),
    "gpu_request/fraction-range": Rule(
        "D", "`gpu-fraction` is not above 0 and below 1", 'annotations: {gpu-fraction: "2"}', _HALF
    ),
    "gpu_request/fraction-precision": Rule(
        "W",
        "`gpu-fraction` is below 0.005 or above 0.995: schedulers write two decimals, `0.00` or `1.00`",
        'annotations: {gpu-fraction: "0.001"}',
        'annotations: {gpu-fraction: "0.01"}',
    ),
    "gpu_request/memory-format": Rule(
        "D",
        "`gpu-memory` is not a whole number of MiB from 1 to 2^63-1 in plain digits",
        "annotations: {gpu-memory: 8Gi}",
        'annotations: {gpu-memory: "8192"}',
    ),
    "gpu_request/memory-and-fraction": Rule(
        "D",
        "`gpu-memory` and `gpu-fraction` are both set",
        'annotations: {gpu-memory: "8192", gpu-fraction: "0.5"}',
        'annotations: {gpu-memory: "8192"}',
    ),
    "gpu_request/memory-size": Rule(
        "W",
        "`gpu-memory` is below 128 MiB: probably meant in GiB",
        'annotations: {gpu-memory: "8"}',
        'annotations: {gpu-memory: "8192"}',
    ),
    "gpu_request/memory-inventory": Rule(
        "W", "`gpu-memory` is set and no node has the label `nvidia.com/gpu.memory`"
    ),
    "gpu_request/num-devices-format": Rule(
        "D",
        "`gpu-fraction-num-devices` is not a whole number from 1 to 1024 in plain digits",
        'annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: two}',
        'annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: "2"}',
    ),
    "gpu_request/num-devices-alone": Rule(
        "D",
        "`gpu-fraction-num-devices` is set without `gpu-fraction` or `gpu-memory`",
        'annotations: {gpu-fraction-num-devices: "2"}',
        'annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: "2"}',
    ),
    "gpu_request/num-devices-inventory": Rule(
        "W", "it is more than any node has (label `nvidia.com/gpu.count`; no warning if no node has the label)"
    ),
    "gpu_request/container-name": Rule(
        "D",
        "`gpu-fraction-container-name` names no container or init container",
        'annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: absent}',
        'annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: main}',
    ),
    "gpu_request/container-name-unused": Rule(
        "W",
        "`gpu-fraction-container-name` is set without a share",
        "annotations: {gpu-fraction-container-name: main}",
        'annotations: {gpu-fraction: "0.5", gpu-fraction-container-name: main}',
    ),
    "gpu_request/mps-alone": Rule(
        "D",
        '`mps: "true"` is set without a share',
        'annotations: {mps: "true"}',
        'annotations: {gpu-fraction: "0.5", mps: "true"}',
    ),
    "gpu_request/mps-spelling": Rule(
        "W",
        '`mps` has an affirmative value other than `"true"`, which no component recognises',
        'annotations: {gpu-fraction: "0.5", mps: "yes please"}',
        'annotations: {gpu-fraction: "0.5", mps: "true"}',
    ),
    "gpu_request/sharing-disabled": Rule("D", "a share is requested and `gpuSharing.enabled` is false"),
    "gpu_request/share-and-whole": Rule(
        "D",
        "a share is requested and some container requests whole GPUs",
        'annotations: {gpu-fraction: "0.5"}\nlimits: {nvidia.com/gpu: 1}',
        _HALF,
    ),
    "gpu_request/share-and-mig": Rule(
        "D",
        "a share is requested and some container requests MIG devices",
        'annotations: {gpu-fraction: "0.5"}\nlimits: {nvidia.com/mig-1g.10gb: 1}',
        _HALF,
    ),
    "gpu_request/share-and-node-name": Rule(
        "D",
        "a share is requested and `spec.nodeName` is set: the pod is never scheduled, so it gets no device",
        'annotations: {gpu-fraction: "0.5"}\nnodeName: gpu-1',
        'annotations: {gpu-fraction: "0.5"}\nnodeSelector: {kubernetes.io/hostname: gpu-1}',
    ),
    "gpu_request/share-privileged": Rule(
        "W", "the share's container is privileged, so it can use every GPU of its node"
    ),
    "gpu_request/share-and-dra": Rule(
        "DW", "the container of the share also uses a DRA claim; denied if its device class is known to be a GPU"
    ),
    "gpu_request/quantity-format": Rule(
        "D",
        "a quantity of GPUs or MIG devices cannot be parsed (`one`, `true`)",
        "limits: {nvidia.com/gpu: one}",
        _ONE_GPU,
    ),
    "gpu_request/quantity-integer": Rule(
        "D",
        "it is negative or not a whole number, rounded up to thousandths as the API server does",
        "limits: {nvidia.com/gpu: 0.5}",
        _HALF,
    ),
    "gpu_request/request-differs": Rule(
        "D",
        "request and limit of GPUs or MIG devices differ",
        "limits: {nvidia.com/gpu: 2}\nrequests: {nvidia.com/gpu: 1}",
        "limits: {nvidia.com/gpu: 2}",
    ),
    "gpu_request/limit-missing": Rule(
        "D", "GPUs or MIG devices are requested without a limit", "requests: {nvidia.com/gpu: 1}", _ONE_GPU
    ),
    "gpu_request/pod-level": Rule(
        "D",
        "GPUs or MIG devices are in `spec.resources`, the pod-level resources",
        "resources: {limits: {nvidia.com/gpu: 1}}",
        _ONE_GPU,
    ),
    "gpu_request/whole-inventory": Rule(
        "W",
        "all containers together request more whole GPUs than any node has (label `nvidia.com/gpu.count`)",
    ),
    "gpu_request/annotation-name": Rule(
        "W",
        "an annotation resembles one of a share (`gpu-fracton`, `GPU_Fraction`, `kai.scheduler/gpu-fraction`) "
        "and is none",
        'annotations: {gpu-fracton: "0.5"}',
        _HALF,
    ),
    "gpu_request/annotation-as-label": Rule(
        "W", "a label has the name of an annotation of a share", 'labels: {gpu-fraction: "0.5"}', _HALF
    ),
    "gpu_request/resource-name": Rule(
        "W",
        "a limit resembles `nvidia.com/gpu` (`nvidia.com/gpus`, `nvidia/gpu`) and is not served by a device plugin",
        "limits: {nvidia.com/gpus: 1}",
        _ONE_GPU,
    ),
    "gpu_request/immutable": Rule(
        "D", "an update adds, changes or removes one of the annotations, or `runai/shared-gpu-configmap`"
    ),
    "gpu_sharing/configmap-prefix": Rule(
        "D",
        "the value of `runai/shared-gpu-configmap` is no valid prefix of a ConfigMap's name, or makes a volume's "
        "name too "
        "long",
        'annotations: {gpu-fraction: "0.5", runai/shared-gpu-configmap: Not_A_Name}',
        _HALF,
    ),
    "gpu_sharing/unprepared": Rule(
        "D", "a sharing pod reaches the validating webhook unmutated: mutation was skipped or undone"
    ),
    "nv_fractions/owned": Rule(
        "D",
        "`nvidia.com/container.<container>.gpus.devices` or `.gpu-compute.portion` is set, changed or removed by a "
        "user: only the reconciler writes them, with the Binding",
        "annotations: {nvidia.com/container.main.gpus.devices: GPU-1}",
        'annotations: {nvidia.com/container.main.gpu-memory.request: "8Gi"}',
    ),
    "nv_fractions/immutable": Rule(
        "D", "another annotation of GPU fractioning changes on an existing pod, while plugin nv_fractions is enabled"
    ),
    "nv_fractions/suffix": Rule(
        "W",
        "an annotation `nvidia.com/container.` has a suffix that Bowline does not read",
        "annotations: {nvidia.com/container.main.gpu-memory.limits: 8Gi}",
        "annotations: {nvidia.com/container.main.gpu-memory.limit: 8Gi}",
    ),
    "nv_fractions/container": Rule(
        "D",
        "an annotation of GPU fractioning names no container or init container",
        "annotations: {nvidia.com/container.absent.gpu-memory.limit: 8Gi}",
        "annotations: {nvidia.com/container.main.gpu-memory.limit: 8Gi}",
    ),
    "nv_fractions/containers": Rule("D", "annotations of GPU fractioning name more than one container"),
    "nv_fractions/container-name": Rule("D", "the container is not the one that `gpu-fraction-container-name` names"),
    "nv_fractions/memory-format": Rule(
        "D",
        "`.gpu-memory.request` or `.gpu-memory.limit` is not a quantity above 0",
        "annotations: {nvidia.com/container.main.gpu-memory.limit: 8 GB}",
        "annotations: {nvidia.com/container.main.gpu-memory.limit: 8G}",
    ),
    "nv_fractions/memory-range": Rule(
        "D",
        "`.gpu-memory.request` exceeds `.gpu-memory.limit`",
        "annotations: {nvidia.com/container.main.gpu-memory.request: 2Gi, "
        "nvidia.com/container.main.gpu-memory.limit: 1Gi}",
        "annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, "
        "nvidia.com/container.main.gpu-memory.limit: 2Gi}",
    ),
    "nv_fractions/memory-mismatch": Rule(
        "D",
        "`.gpu-memory.request` and `gpu-memory` differ",
        'annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, gpu-memory: "2048"}',
        "annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi}",
    ),
    "nv_fractions/memory-and-fraction": Rule(
        "D",
        "`.gpu-memory.request` or `.gpu-memory.limit` is set beside `gpu-fraction`",
        'annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi, gpu-fraction: "0.5"}',
        "annotations: {nvidia.com/container.main.gpu-memory.request: 1Gi}",
    ),
    "nv_fractions/mode": Rule(
        "D",
        "`.gpu-compute.mode` is neither `time-slicing` nor `sm-sharing`",
        'annotations: {nvidia.com/container.main.gpu-compute.mode: exclusive, gpu-fraction: "0.5"}',
        'annotations: {nvidia.com/container.main.gpu-compute.mode: sm-sharing, gpu-fraction: "0.5"}',
    ),
    "nv_fractions/portion-limit": Rule(
        "D",
        "`kai.scheduler/container.<container>.gpu-memory.portion.limit` is not a number above `gpu-fraction` and "
        "below 1",
        'annotations: {kai.scheduler/container.main.gpu-memory.portion.limit: "0.4", gpu-fraction: "0.5"}',
        'annotations: {kai.scheduler/container.main.gpu-memory.portion.limit: "0.8", gpu-fraction: "0.5"}',
    ),
    "nv_fractions/limit-shorthand": Rule(
        "D",
        "`gpu-memory.limit` is not a quantity of at least `gpu-memory`, or `gpu-fraction.limit` not a number above "
        "`gpu-fraction` and below 1; or one of them differs from the annotation that names the container",
        'annotations: {gpu-memory.limit: "8192", gpu-memory: "4096"}',
        'annotations: {gpu-memory.limit: 8Gi, gpu-memory: "4096"}',
    ),
    "hami_core/portion": Rule(
        "D",
        "`gpu-fraction` is below 0.005 while plugin hami_core is enabled: schedulers write the portion with two "
        "decimals, "
        "and `0.00` defines no limit",
    ),
    "hami_core/unprepared": Rule(
        "D", "a sharing pod reaches the validating webhook without the variable of its limit"
    ),
    "runtime_class/missing": Rule(
        "D", "a sharing pod reaches the validating webhook without a runtime class: mutation was skipped"
    ),
    "device_access/value": Rule(
        "D", "plugin device_access: an entry `NVIDIA_VISIBLE_DEVICES` is not `void` or `none`"
    ),
    "device_access/value-from": Rule(
        "D", "plugin device_access: an entry `NVIDIA_VISIBLE_DEVICES` has a `valueFrom`"
    ),
    "device_access/configmap-prefix": Rule(
        "D", "plugin device_access: a share's `runai/shared-gpu-configmap` was chosen by its author, not generated"
    ),
    "device_access/env-from": Rule(
        "W",
        "plugin device_access: a container with a GPU has an `envFrom` source whose prefix does not rule out "
        "`NVIDIA_VISIBLE_DEVICES`",
    ),
    "device_access/unprepared": Rule(
        "D",
        "plugin device_access: a container without a GPU reaches the last hook without `void`: the mutating "
        "webhook was "
        "unavailable",
    ),
    "dynamic_resources/allocation-duplicate": Rule(
        "D",
        "two entries of a BindRequest are for the same claim of the pod",
        f"{{podName: p, selectedNode: n, resourceClaimAllocations: [{_CLAIM_A}, {_CLAIM_A}]}}",
        f"{{podName: p, selectedNode: n, resourceClaimAllocations: [{_CLAIM_A}]}}",
    ),
    "dynamic_resources/allocation-missing": Rule(
        "W",
        "an entry of a BindRequest decides no device, which only an allocated claim permits",
        "{podName: p, selectedNode: n, resourceClaimAllocations: [{name: a}]}",
        f"{{podName: p, selectedNode: n, resourceClaimAllocations: [{_CLAIM_A}]}}",
    ),
    "bindrequest/schema": Rule(
        "D",
        "the spec of a BindRequest is not as its schema requires",
        "{podName: p, selectedNode: n, backoffLimit: many}",
        "{podName: p, selectedNode: n, backoffLimit: 3}",
    ),
    "bindrequest/pod-uid": Rule("D", "`spec.podUID` of a BindRequest is not the UID of the pod that owns it"),
    "bindrequest/repeated": Rule(
        "D",
        "a BindRequest repeats a decision that has just failed, and nothing that it depends on has changed: "
        "`admission.repeatBackoff`, [decision 200](decisions/0200-a-repeated-failure-is-denied-at-creation.md)",
    ),
    "bindrequest/field-name": Rule(
        "W",
        "an unknown field of a BindRequest's spec resembles a known one",
        "{podName: p, selectedNode: n, backofLimit: 3}",
        "{podName: p, selectedNode: n, backoffLimit: 3}",
    ),
    "scope/scheduler": Rule(
        "W",
        "a pod of a scheduler that is not in `schedulerNames` requests a share: no component prepares it",
        'annotations: {gpu-fraction: "0.5"}\nschedulerName: default-scheduler',
        _HALF,
    ),
    "scope/scheduler-name": Rule(
        "W",
        "a pod's scheduler is not in `schedulerNames`, and resembles one that is",
        "schedulerName: kai-schedular",
        "schedulerName: kai-scheduler",
    ),
    "structure/type": Rule("D", "a field has another type than the API's", 'annotations: "gpu-fraction=0.5"', _HALF),
    "structure/required": Rule("D", "a pod or a BindRequest has no metadata or no spec"),
    "structure/containers": Rule("D", "a pod has more containers than a review can examine"),
    "structure/resources": Rule("D", "the containers of a pod have more resources than a review can examine"),
    "structure/templates": Rule("D", "a workload has more than 128 pod templates"),
    "kubernetes/quantity": Rule(
        "D",
        "a container's quantity is none, is negative, or is not whole although it counts devices; only offline: in a "
        "cluster the API server itself denies it",
        "limits: {memory: much}",
        "limits: {memory: 1Gi}",
    ),
    "kubernetes/limit": Rule(
        "D",
        "a container's request is above its limit, or counts devices and has no limit or another one; only offline",
        "limits: {cpu: 1}\nrequests: {cpu: 2}",
        "limits: {cpu: 2}\nrequests: {cpu: 1}",
    ),
    "workload/template-path": Rule(
        "W",
        "a path of the configuration's `workloads` leads to a pod spec instead of a pod template, or the reverse: "
        "the object's pods are not reviewed where it is applied",
    ),
    "workload/annotation-place": Rule(
        "W", "an annotation of a share is on a workload, not on its pod template: its pods do not have it"
    ),
}


def explain_rule(name: str) -> str | None:
    """Return the text about a rule; None if there is no such rule."""
    rule = RULES.get(name)
    if rule is None:
        return None
    verb = {"D": "denies", "W": "warns", "DW": "denies or warns"}[rule.denies]
    lines = [f"{name} {verb}: {rule.meaning.replace('`', '')}"]
    for label, example in (("invalid", rule.invalid), ("valid", rule.valid)):
        lines += [f"  {label}:", *(f"    {line}" for line in example.splitlines())] if example else []
    return "\n".join(lines)


def similar_rules(name: str) -> list[str]:
    """Return the rules whose name resembles it."""
    return get_close_matches(name, [*RULES, *(rule.rpartition("/")[2] for rule in RULES)], 3, 0.6)
