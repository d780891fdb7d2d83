"""Tells HAMi core, the library that holds containers to their share, how much GPU memory a share may use.

Admission lets the container's environment refer to a key of the share's ConfigMap; binding writes that key, after
``gpu_sharing`` has written the rest. Off by default: the library has to be in the containers for it to mean anything.
A limit that cannot be worked out fails the bind: a container without it would take the whole device.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shared.api import names
from shared.api.bindrequest import BindRequest, ResourceType
from shared.api.field_error import FieldError
from shared.api.gpu_share import capabilities_map, configmap_prefix, share_target, wants_share
from shared.api.meta import Object, ObjectKey, ObjectUID, uid_of, version_of
from shared.framework.binding.post import refusal
from shared.framework.mutable import MutablePod
from shared.framework.plugin import RUN, SKIP, AdmissionInfo, Plugin, Preflight
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.kube.client import KubeClient
from shared.kube.errors import ApiError, Conflict, NotFound
from shared.kube.resources import CONFIGMAPS
from shared.plugins.hami_core.rules import memory_limit

if TYPE_CHECKING:
    from shared.framework.binding.context import BindContext


class HamiCore(Plugin):
    """Limits the device memory of shares."""

    name = "hami_core"
    requires = ("gpu_sharing",)

    # --- admission ---

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        """Let the share's container take its limit from the ConfigMap, whatever its own environment says."""
        target = share_target(pod.raw) if wants_share(pod.raw) else None
        wanted = _env_entry(pod.raw)
        if target is None or wanted is None:
            return
        env = target.container.get("env") or []
        if not _limits(env, wanted):
            kept = [entry for entry in env if entry.get("name") != names.DEVICE_MEMORY_LIMIT]
            pod.set([*kept, wanted], "spec", target.field, target.index, "env")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        target = share_target(pod) if wants_share(pod) else None
        wanted = _env_entry(pod)
        if old is not None or not info.final or target is None or wanted is None:
            return
        if not _limits(target.container.get("env") or [], wanted):
            message = (
                f"the container of the GPU share lacks {names.DEVICE_MEMORY_LIMIT}, which the mutating webhook adds: "
                "it was away or something changed the pod after it; create the pod again"
            )
            path = f"spec.{target.field}[{target.index}].env"
            yield FieldError("hami_core/unprepared", path, None, message)

    # --- binding ---

    def preflight(self, c: "BindContext") -> Preflight:
        return RUN if _is_share(c.request) else SKIP

    async def pre_bind(self, c: "BindContext") -> Status:
        """Write the limit into the ConfigMap that gpu_sharing has just seen to."""
        pod, received = c.pod, c.spec.received_gpu
        target = share_target(pod) if pod is not None else None
        if pod is None or target is None or received is None or c.node is None:
            return Status.skip()
        limit, fault = memory_limit(c.node, received.share)
        if not limit:
            return Status.fatal(fault, Reason.REJECTED, Suggestion.RESCHEDULE_ELSEWHERE)
        name = capabilities_map(configmap_prefix(pod), target)
        try:
            return await _write_limit(c.client, ObjectKey(c.request.key.namespace, name), uid_of(pod), limit)
        except (NotFound, Conflict) as error:
            return Status(Code.INFRA, (error.message,))
        except ApiError as error:
            return refusal(error.message)


async def _write_limit(client: KubeClient, key: ObjectKey, pod_uid: ObjectUID, limit: str) -> Status:
    """Write the limit, if it is not there yet and the ConfigMap is the pod's."""
    found = await client.get(CONFIGMAPS, key.namespace, key.name)
    if not any(owner.get("uid") == pod_uid for owner in found["metadata"].get("ownerReferences") or ()):
        return Status.fatal(f"ConfigMap {key} does not belong to the pod and is not written")
    if (found.get("data") or {}).get(names.DEVICE_MEMORY_LIMIT) != limit:
        guard = {"uid": uid_of(found), "resourceVersion": version_of(found)}
        patch = {"metadata": guard, "data": {names.DEVICE_MEMORY_LIMIT: limit}}
        await client.patch(CONFIGMAPS, key.namespace, key.name, patch)
    return Status.ok()


def _is_share(request: BindRequest) -> bool:
    return request.spec is not None and request.spec.received_resource_type is ResourceType.FRACTION


def _env_entry(pod: Object) -> dict[str, Any] | None:
    """Return the variable that the container gets; None where there is no ConfigMap to take it from."""
    prefix, target = configmap_prefix(pod), share_target(pod)
    if not prefix or target is None:
        return None
    # Optional: pods prepared while the plugin is on are still started after it has been switched off.
    reference = {"name": capabilities_map(prefix, target), "key": names.DEVICE_MEMORY_LIMIT, "optional": True}
    return {"name": names.DEVICE_MEMORY_LIMIT, "valueFrom": {"configMapKeyRef": reference}}


def _limits(env: list[Any], wanted: dict[str, Any]) -> bool:
    return [entry for entry in env if entry.get("name") == names.DEVICE_MEMORY_LIMIT] == [wanted]
