"""A share's two ConfigMaps: what they contain and show, whose they are, and their writes and deletes.

They are immutable. One with other content, for example of an earlier device, is deleted and created again: the pod is
not bound yet, so no kubelet has read it.

Their names come from an annotation that the user may choose, and the reconciler may write ConfigMaps in every
namespace. So a ConfigMap of that name which is not owned by this pod (by UID) is treated as foreign.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequestSpec
from bowline.api.field_error import annotation_path
from bowline.api.gpu_share import refers_to_key
from bowline.api.meta import Object, ObjectUID, is_deleting, key_of, pod_owner, uid_of, version_of
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import AlreadyExists, Conflict, NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.kube.stored import is_stored
from bowline.plugins.gpu_sharing.reservation import other_mode
from bowline.plugins.gpu_sharing.rules import Share

# The garbage collector deletes the ConfigMaps of a deleted pod within seconds.
COLLECTED_SOON = timedelta(seconds=2)


def visible_devices(devices: Iterable[str], *, cdi: bool) -> str:
    """Return the value of NVIDIA_VISIBLE_DEVICES. ``devices``: UUIDs, in the order of the request's groups."""
    return ",".join(f"{names.CDI_GPU_KIND}={device}" if cdi else device for device in devices)


def share_configmaps(
    share: Share, pod: Object, spec: BindRequestSpec, request_uid: ObjectUID, visible: str, memory_limit: str = ""
) -> list[dict[str, Any]]:
    """Return both ConfigMaps: owned by the pod, deleted with it, immutable, prepared for the request.

    A container's devices are fixed before it starts: users who may edit ConfigMaps must not change them. By the label
    the chart's admission policy recognises ConfigMaps that only the reconciler may write or delete.

    ``memory_limit`` is written if the container refers to it; as it does while plugin hami_core is enabled.
    """
    container, portion = share.target.container, spec.received_gpu.portion if spec.received_gpu is not None else ""
    data = {names.GPU_PORTION: portion, names.NUM_OF_GPUS: portion}
    if memory_limit and refers_to_key(container, names.DEVICE_MEMORY_LIMIT):
        data[names.DEVICE_MEMORY_LIMIT] = memory_limit
    # Pods mutated by another webhook may get the variable from ``envFrom`` alone.
    direct = {} if refers_to_key(container, names.VISIBLE_DEVICES) else {names.VISIBLE_DEVICES: visible}
    data |= {} if direct else {names.VISIBLE_DEVICES: visible}
    prepared, modes = {names.PREPARED_FOR: str(request_uid)}, spec.compute_modes
    annotations = {**prepared, names.ANNOTATION_GPU_GROUPS: ",".join(spec.gpu_groups)}
    if modes:
        shown_modes = (modes.get(group, names.TIME_SLICING) for group in spec.gpu_groups)
        annotations[names.ANNOTATION_COMPUTE_MODES] = ",".join(shown_modes)
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": pod["metadata"]["namespace"],
                "labels": {names.LABEL_GPU_SHARING: "true"},
                "ownerReferences": [pod_owner(pod["metadata"]["name"], pod["metadata"]["uid"])],
                "annotations": own_annotations,
            },
            "data": own_data,
            "immutable": True,
        }
        for name, own_data, own_annotations in zip(
            share.configmaps, (data, direct), (annotations, prepared), strict=True
        )
    ]


def is_prepared_by(configmap: Object, pod: Object, request_uid: ObjectUID) -> bool:
    """Return whether a share's ConfigMap is the pod's, and prepared for this request and no other.

    One without a record, which another binder has written, is taken for this request's while the pod is not bound.
    """
    prepared_for = (configmap["metadata"].get("annotations") or {}).get(names.PREPARED_FOR)
    is_recorded = prepared_for == request_uid or (prepared_for is None and not pod["spec"].get("nodeName"))
    return is_recorded and uid_of(pod) in owning_pods(configmap)


def owning_pods(configmap: Object) -> dict[ObjectUID, str]:
    """Return the names of the pods that own the ConfigMap, by UID."""
    owners = configmap["metadata"].get("ownerReferences") or ()
    return {ObjectUID(owner["uid"]): owner["name"] for owner in owners if owner.get("kind") == "Pod"}


def shown_devices(group: str, annotations: Mapping[str, str], data: Mapping[str, str]) -> frozenset[str]:
    """Return the UUIDs that may be the group's device, according to a share's ConfigMaps.

    A ConfigMap of KAI-Scheduler does not name the groups: any of its devices may be the group's.
    """
    visible = data.get(names.VISIBLE_DEVICES, "")
    devices = [device.removeprefix(f"{names.CDI_GPU_KIND}=") for device in visible.split(",") if device]
    groups = annotations.get(names.ANNOTATION_GPU_GROUPS, "").split(",")
    is_named = len(groups) == len(devices) and group in groups
    return frozenset({devices[groups.index(group)]} if is_named else devices)


def shown_mode(group: str, annotations: Mapping[str, str]) -> str:
    """Return the group's mode according to a share's ConfigMaps; empty for time-slicing."""
    groups, modes = (
        annotations.get(key, "").split(",") for key in (names.ANNOTATION_GPU_GROUPS, names.ANNOTATION_COMPUTE_MODES)
    )
    return other_mode(dict(zip(groups, modes, strict=False)).get(group, ""))


def common_devices(device_sets: Collection[frozenset[str]]) -> frozenset[str]:
    """Return the devices that all pods of a group agree on; pods without evidence do not count."""
    nonempty_sets = [devices for devices in device_sets if devices]
    return frozenset.intersection(*nonempty_sets) if nonempty_sets else frozenset()


async def write_configmaps(client: ObjectClient, configmaps: Iterable[dict[str, Any]], pod: Object) -> Status:
    """Write each ConfigMap of the pod, complete. OK also if they exist with the expected content.

    Raises NotStoredError. Returns RETRY on a race with another writer, FATAL if a ConfigMap of that name belongs to
    another owner.
    """
    for body in configmaps:
        try:
            await client.create(CONFIGMAPS, body["metadata"]["namespace"], body, essential=body)
        except AlreadyExists:
            status = await _replace_own(client, body, pod)
            if status is not None:
                return status
    return Status.ok()


async def delete_configmaps(client: ObjectClient, share: Share, pod: Object, request_uid: ObjectUID) -> Status:
    """Delete the share's ConfigMaps that are prepared for the request, not those of another request.

    OK only if a read shows that none is left. RETRY if one changes meanwhile.
    """
    namespace = key_of(pod).namespace
    for name in share.configmaps:
        try:
            existing = await client.get(CONFIGMAPS, namespace, name)
            if not is_prepared_by(existing, pod, request_uid):
                continue
            if not is_deleting(existing):
                await client.delete(
                    CONFIGMAPS, namespace, name, uid=uid_of(existing), resource_version=version_of(existing)
                )
            left = await client.get(CONFIGMAPS, namespace, name)
        except NotFound:
            continue
        except Conflict as error:
            return Status.retry(f"ConfigMap {namespace}/{name} has just been changed: {error.message}")
        if is_prepared_by(left, pod, request_uid):
            finalizers = ", ".join(left["metadata"].get("finalizers") or ()) or "none"
            return Status.retry(
                f"ConfigMap {namespace}/{name} still exists after its delete (finalizers: {finalizers})"
            )
    return Status.ok()


async def _replace_own(client: ObjectClient, body: dict[str, Any], pod: Object) -> Status | None:
    """Replace an existing ConfigMap by the expected one if the pod owns it. None on success."""
    key = key_of(body)
    try:
        existing = await client.get(CONFIGMAPS, key.namespace, key.name)
        owners = owning_pods(existing)
        if is_deleting(existing):
            return Status.retry(f"ConfigMap {key} is being deleted", COLLECTED_SOON)
        if uid_of(pod) not in owners:
            return await _foreign(client, existing, owners)
        if not is_stored(body, existing):
            await client.delete(
                CONFIGMAPS, key.namespace, key.name, uid=uid_of(existing), resource_version=version_of(existing)
            )
            await client.create(CONFIGMAPS, key.namespace, body, essential=body)
    except (NotFound, Conflict, AlreadyExists) as error:
        return Status.retry(f"ConfigMap {key} has just been changed: {error.message}")
    return None


async def _foreign(client: ObjectClient, configmap: Object, owners: dict[ObjectUID, str]) -> Status:
    key = key_of(configmap)
    for uid, name in owners.items():
        try:
            owner = await client.get(PODS, key.namespace, name)
        except NotFound:
            owner = None
        if owner is None or uid_of(owner) != uid:
            why = f"ConfigMap {key} of an earlier pod {name} waits for the garbage collector"
            return Status.retry(why, COLLECTED_SOON)
    belongs = f"belongs to pod {', '.join(owners.values())}" if owners else "does not belong to this pod"
    return Status.fatal(
        f"{annotation_path(names.SHARED_GPU_CONFIGMAP)}: ConfigMap {key} exists and {belongs}, so it is not written; "
        "remove the annotation, also from the pod's template, and create the pod again: a free name is chosen",
        Reason.REJECTED,
        Suggestion.DELETE_POD,
    )
