"""Claims for a pod's extended resources that another binder created and left behind.

They have generated names, so only a list of the namespace's claims finds them, by annotation and owner. They exist
after a migration: the binder that ran before this process was interrupted, or its rollback deleted a claim but left
the finalizer, and the claim keeps its devices until its pod is deleted. So only pods older than this process are
checked, and all pods of a namespace share one list.
"""

from datetime import datetime

from shared.api import names
from shared.api.meta import Object, ObjectKey, ObjectUID, parse_time, uid_of
from shared.kube.client import KubeClient
from shared.kube.resources import RESOURCECLAIMS
from shared.plugins.dynamic_resources.extended import claim_name
from shared.plugins.dynamic_resources.rules import RequiredClaim
from shared.plugins.dynamic_resources.writer import Claims
from shared.runtime.clock import Clock
from shared.runtime.shared_read import SharedReads

TTL_S = 30.0

# Claims by the UID of their controller pod.
_Found = dict[ObjectUID, list[ObjectKey]]


class Leftovers:
    """Finds and removes such claims. Methods raise the client's errors."""

    def __init__(self, client: KubeClient, claims: Claims, clock: Clock) -> None:
        self._client = client
        self._claims = claims
        self._since: datetime = clock.now()
        self._lists: SharedReads[str, _Found] = SharedReads(TTL_S, clock.monotonic)

    async def remove(self, pod: Object) -> None:
        """Remove the pod's leftover claims, which frees their devices."""
        created = parse_time(pod["metadata"].get("creationTimestamp"))
        if created is None or created >= self._since:
            return
        namespace = pod["metadata"]["namespace"]
        found = await self._lists.get(namespace, lambda: self._list(namespace))
        for key in found.get(uid_of(pod), ()):
            if key.name != claim_name(pod):
                label = f"the claim of the pod's extended resources ({key.name})"
                await self._claims.remove(RequiredClaim(label, key, None, of_pod=True), uid_of(pod))

    async def _list(self, namespace: str) -> _Found:
        found: _Found = {}
        for claim in await self._client.list_all(RESOURCECLAIMS.as_metadata(), namespace):
            metadata = claim["metadata"]
            if (metadata.get("annotations") or {}).get(names.EXTENDED_RESOURCE_CLAIM) != "true":
                continue
            for owner in metadata.get("ownerReferences") or ():
                if owner.get("controller"):
                    found.setdefault(owner["uid"], []).append(ObjectKey(namespace, metadata["name"]))
        return found
