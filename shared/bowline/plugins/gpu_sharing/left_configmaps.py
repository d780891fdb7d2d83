"""Deletes the ConfigMaps of a share that its pod leaves behind.

`kubectl delete pod --cascade=orphan` removes the owner of what the pod owns before the pod is gone, so the garbage
collector deletes nothing of it. The watches, of running pods and of those that have ended, show such a pod while it
is being deleted. Its ConfigMaps are read by its containers until then, and are deleted once it is gone. Of a pod that
was deleted while nothing led they stay, because nothing but their names finds them and the reconciler may list no
ConfigMaps: they can be deleted by whoever may delete ConfigMaps, and a new pod that names them replaces them.
"""

from datetime import timedelta
from typing import Any

from bowline.api.gpu_share import direct_env_map
from bowline.api.meta import Object, ObjectKey, identity_of, is_deleting
from bowline.kube.errors import NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import PODS
from bowline.plugins.gpu_sharing.configmaps import delete_left_behind
from bowline.plugins.gpu_sharing.rules import share_of

# The garbage collector's finalizer while it removes the owner references to an object.
ORPHAN_FINALIZER = "orphan"
# How often the end of the pod is looked for: its containers have their grace period.
POLL = timedelta(seconds=2)


def is_orphaning(pod: Object) -> bool:
    """Return whether the pod is being deleted, and what it owns is not."""
    return is_deleting(pod) and ORPHAN_FINALIZER in (pod["metadata"].get("finalizers") or ())


def transform_left(pod: dict[str, Any]) -> Object | None:
    """Keep the identity of an ended pod that is being deleted without what it owns, and nothing of the others."""
    return {"metadata": identity_of(pod)} if is_orphaning(pod) else None


class LeftConfigMaps:
    """One pod per call, until it is gone."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._names: dict[ObjectKey, tuple[str, ...]] = {}  # of the ConfigMaps, by pod

    def __len__(self) -> int:
        return len(self._names)

    def clear(self) -> None:
        """End of leadership: the next leader's watch shows the pods that are still being deleted."""
        self._names.clear()

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
