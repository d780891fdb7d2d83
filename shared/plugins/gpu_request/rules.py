"""The rules for a pod's GPU request, as functions from data to field errors.

Pure: no clock, no I/O, no logging. ``request_faults`` validates a new pod and returns all its errors in a fixed
order: single annotations, exclusions, then the containers' resources. ``update_faults`` validates only what changed:
a stored pod must stay updatable whatever rules were added since, or its finalizers could not be removed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shared.api import names
from shared.api.field_error import FieldError, annotation_path, shown
from shared.api.meta import Object
from shared.framework.plugin import Inventory
from shared.plugins.gpu_request import wording
from shared.plugins.gpu_request.devices import device_faults
from shared.plugins.gpu_request.pod import PodView, owned_annotations, view_pod
from shared.plugins.gpu_request.share import fault, listed, share_faults


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that the rules depend on. ``gpu_device_classes``: DRA classes known to be GPUs."""

    sharing: bool = True
    gpu_device_classes: frozenset[str] = frozenset()


def request_faults(raw: Object, policy: Policy, inventory: Inventory | None = None) -> list[FieldError]:
    """Return every error and warning of a new pod."""
    pod = view_pod(raw)
    return [
        *(share_faults(pod, inventory) if pod.annotations else ()),
        *(_exclusion_faults(pod, policy) if pod.share else ()),
        *device_faults(pod, inventory),
    ]


def update_faults(raw: Object, old: Object) -> list[FieldError]:
    """Return an error for every changed share annotation: immutable, as the container's environment is."""
    now, before = owned_annotations(raw), owned_annotations(old)
    faults = []
    for key in names.OWNED_ANNOTATIONS:
        if now.get(key) == before.get(key):
            continue
        was = f"it was {shown(before[key])}" if key in before else "there was none"
        message = f"is fixed when the pod is created ({was}); create a new pod with the value wanted"
        faults.append(FieldError("gpu_request/immutable", annotation_path(key), now.get(key), message))
    return faults


def _exclusion_faults(pod: PodView, policy: Policy) -> Iterator[FieldError]:
    """Yield what makes a share impossible, as errors of the annotation that requests it."""
    if not policy.sharing:
        yield fault(pod, "sharing-disabled", pod.share, wording.SHARING_DISABLED)
    whole, mig = [], []
    for container in pod.containers:
        for amount in container.asked:
            asked = f"{container.label}: {amount.resource} {amount.told}"
            if amount.resource == names.RESOURCE_GPU:
                whole.append(asked)
            elif amount.resource.startswith(names.RESOURCE_MIG_PREFIX):
                mig.append(asked)
    if whole:
        yield fault(pod, "share-and-whole", pod.share, wording.share_and_whole(listed(whole)))
    if mig:
        yield fault(pod, "share-and-mig", pod.share, wording.share_and_mig(listed(mig)))
    if pod.node_name:
        yield fault(pod, "share-and-node-name", pod.share, wording.SHARE_AND_NODE_NAME)
    if pod.target is not None and pod.target.is_privileged:
        message = f"{pod.target.label} is privileged and so can use every GPU of its node, not only its share"
        yield fault(pod, "share-privileged", pod.share, message, is_warning=True)
    yield from _claim_faults(pod, policy)


def _claim_faults(pod: PodView, policy: Policy) -> Iterator[FieldError]:
    """Deny a share beside a DRA claim known to be a GPU; warn beside any other claim.

    A pod names claims and templates, which name the class; only a resource
    ``deviceclass.resource.kubernetes.io/<class>`` names the class in the pod itself. A lookup of the others would
    make the verdict depend on the time of the review.
    """
    target = pod.target
    if target is None or (target.is_plain and not target.claims):
        return
    prefix = names.RESOURCE_DEVICE_CLASS_PREFIX
    classes = [a.resource.removeprefix(prefix) for a in target.asked if a.resource.startswith(prefix)]
    gpus = listed([shown(name) for name in classes if name in policy.gpu_device_classes])
    if gpus:
        yield fault(pod, "share-and-dra", pod.share, wording.share_and_dra(target.label, gpus))
    elif classes or target.claims:
        claims = listed([shown(name) for name in (*target.claims, *classes)])
        message = f"{target.label} also uses DRA claims ({claims}); if one is a GPU, it is in addition to the share"
        yield fault(pod, "share-and-dra", pod.share, message, is_warning=True)
