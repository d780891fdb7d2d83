"""Writes and deletes a share's two ConfigMaps; only those owned by the pod are ever changed.

They are immutable. One with other content, for example of an earlier device, is deleted and created again: the pod is
not bound yet, so no kubelet has read it.

Their names come from an annotation that the user may choose, and the reconciler may write ConfigMaps in every
namespace. So a ConfigMap of that name which is not owned by this pod (by UID) is treated as foreign.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.field_error import annotation_path
from bowline.api.meta import Object, ObjectUID, is_deleting, key_of, uid_of, version_of
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import AlreadyExists, Conflict, NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.kube.stored import is_stored
from bowline.plugins.gpu_sharing.share_maps import (
    ShareConfigMaps,
    configmap_object,
    is_prepared_by,
    owning_pods,
)

# The garbage collector deletes the ConfigMaps of a deleted pod within seconds.
COLLECTED_SOON = timedelta(seconds=2)


async def write_configmaps(
    client: ObjectClient, maps: ShareConfigMaps, pod: Object, request_uid: ObjectUID
) -> Status:
    """Write each ConfigMap for the request, complete. OK also if they exist with the expected content.

    Raises NotStoredError. Returns RETRY on a race with another writer, FATAL if a ConfigMap of that name belongs to
    another owner.
    """
    for name in maps.data:
        body = configmap_object(name, maps, pod, request_uid)
        try:
            await client.create(CONFIGMAPS, body["metadata"]["namespace"], body, essential=body)
        except AlreadyExists:
            status = await _replace_own(client, body, pod)
            if status is not None:
                return status
    return Status.ok()


async def delete_configmaps(
    client: ObjectClient, configmap_names: Iterable[str], pod: Object, request_uid: ObjectUID
) -> Status:
    """Delete the pod's ConfigMaps of these names that are prepared for the request, not those of another request.

    OK only if a read shows that none is left. RETRY if one changes meanwhile.
    """
    namespace = key_of(pod).namespace
    for name in configmap_names:
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
