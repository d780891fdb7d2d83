"""Deletes the ConfigMaps of a share that its pod leaves behind.

`kubectl delete pod --cascade=orphan` removes the owner of what the pod owns before the pod is gone, so the garbage
collector deletes nothing of it. The watches, of running pods and of those that have ended, show such a pod while it
is being deleted. Its ConfigMaps are read by its containers until then, and are deleted once it is gone. Their names
depend on the position of the pod's container, which the watches do not show; of a pod that is gone before it was
read, those of the first positions are tried. Of a pod that was deleted while nothing led they stay, because nothing
but their names finds them and the reconciler may list no ConfigMaps: they can be deleted by whoever may delete
ConfigMaps, and a new pod that names them replaces them.
"""

from datetime import timedelta
from typing import Any, Final, Literal

from bowline.api import names
from bowline.api.gpu_share import ShareTarget, capabilities_map, configmap_prefix, direct_env_map
from bowline.api.meta import Object, ObjectKey, identity_of, is_deleting, key_of
from bowline.kube.errors import NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import PODS
from bowline.plugins.gpu_sharing.configmaps import delete_left_behind
from bowline.plugins.gpu_sharing.rules import share_of

# The garbage collector's finalizer while it removes the owner references to an object.
ORPHAN_FINALIZER = "orphan"
# How often the end of the pod is looked for: its containers have their grace period.
POLL = timedelta(seconds=2)
# Positions of containers that are tried, in each field: few pods have more.
FIELDS: Final[tuple[Literal["containers", "initContainers"], ...]] = ("containers", "initContainers")
POSITIONS: Final = 8


def is_orphaning(pod: Object) -> bool:
    """Return whether the pod is being deleted, and what it owns is not."""
    return is_deleting(pod) and ORPHAN_FINALIZER in (pod["metadata"].get("finalizers") or ())


def transform_left(pod: dict[str, Any]) -> Object | None:
    """Keep of an ended pod that is being deleted without what it owns its identity and ``possible_maps``."""
    return {"metadata": identity_of(pod), "left": possible_maps(pod)} if is_orphaning(pod) else None


def possible_maps(pod: Object) -> tuple[str, ...]:
    """Return the names that the ConfigMaps of a pod's share may have, by its metadata alone."""
    prefix = configmap_prefix(pod)
    if not prefix:
        return ()
    targets = [ShareTarget("containers", 0, {})]
    if names.GPU_FRACTION_CONTAINER in (pod["metadata"].get("annotations") or {}):
        targets = [ShareTarget(field, index, {}) for field in FIELDS for index in range(POSITIONS)]
    capabilities = [capabilities_map(prefix, target) for target in targets]
    return (*capabilities, *map(direct_env_map, capabilities))


class LeftConfigMaps:
    """One pod per call, until it is gone. ``expect`` comes first."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._names: dict[ObjectKey, tuple[str, ...]] = {}  # of the ConfigMaps, by pod

    def __len__(self) -> int:
        return len(self._names)

    def clear(self) -> None:
        """End of leadership: the next leader's watch shows the pods that are still being deleted."""
        self._names.clear()

    def expect(self, pod: Object) -> ObjectKey:
        """Note the names of a pod that a watch shows, with ``possible_maps`` in ``left``; returns the pod's key."""
        key = key_of(pod)
        self._names.setdefault(key, pod["left"])
        return key

    async def run(self, key: ObjectKey) -> timedelta | None:
        """Note the ConfigMaps of a pod that is being deleted, or delete them; returns when to look again."""
        try:
            pod = await self._client.get(PODS, key.namespace, key.name)
        except NotFound:
            pod = None
        share = share_of(pod) if pod is not None and is_orphaning(pod) else None
        if share is not None:
            self._names[key] = (share.capabilities, direct_env_map(share.capabilities))
        if pod is not None and is_deleting(pod):
            return POLL
        await delete_left_behind(self._client, self._names.get(key, ()), key.namespace)
        self._names.pop(key, None)
        return None
