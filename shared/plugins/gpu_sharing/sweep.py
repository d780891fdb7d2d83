"""Finding the groups that nobody has told of: at the start of leadership, and every now and then.

While nobody leads, sharing pods come to their end unseen; a watch that breaks off may miss one, too. A sweep compares
two lists and has the groups looked at that seem to be without users; whether they are is judged by the look.

The first sweep reads the metadata of all pods, because no selector finds the pods of several devices that another
binder has labelled: they get the label by which they are watched from then on.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from shared.api import names
from shared.api.gpu_share import gpu_groups
from shared.api.meta import Object, ObjectKey, key_of
from shared.kube.errors import ApiError
from shared.kube.resources import PODS, Selection
from shared.plugins.gpu_sharing.metrics import SharingMetrics
from shared.plugins.gpu_sharing.owner import GroupOwner
from shared.plugins.gpu_sharing.reservation import Reservation
from shared.plugins.gpu_sharing.rules import label_changes, needs_relabeling
from shared.plugins.gpu_sharing.site import Site

log = logging.getLogger(__name__)

PERIOD = timedelta(minutes=10)
# All pods of a cluster pass by here once. A page of 500, as lists that are kept have it, takes 10 MB.
PAGE = 100
SHARING = f"{names.LABEL_GPU_SHARING}=true"
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"


class Sweep:
    """One sweep a call; ``first`` ones adopt."""

    def __init__(self, site: Site, owner: GroupOwner, metrics: SharingMetrics) -> None:
        self._site = site
        self._owner = owner
        self._metrics = metrics
        self._adopts = True

    def begin(self) -> None:
        """This process leads now: others may have labelled pods before."""
        self._adopts = True

    async def run(self, _: ObjectKey) -> timedelta | None:
        """Sweep once; returns when to sweep again."""
        selector = "" if self._adopts else SHARING
        seen = await self._site.reservations()
        used: set[str] = set()
        for pod in await self._sharing(selector):
            used |= gpu_groups(pod["metadata"]["labels"])
            await self._adopt(pod)
        self._adopts = False
        self._owner.look({one.group for one in seen} - used)
        unheld = used - _held(seen)
        if unheld:
            # Shares may have begun since: reading all pods of a cluster takes a while.
            unheld -= _held(await self._site.reservations())
        self._metrics.unreserved.set(len(unheld))
        if unheld:
            self._owner.look(unheld)
            log.warning("devices in use that nothing reserves", extra={"groups": sorted(unheld)[:20]})
        return PERIOD

    async def _sharing(self, selector: str) -> list[Object]:
        """Return the running pods that hold groups; read page by page, so that no others are ever kept."""
        selection = Selection(PODS.as_metadata(), label_selector=selector, field_selector=RUNNING)
        return [
            pod
            async for page in self._site.client.pages(selection, PAGE)
            for pod in page["items"] or ()
            if pod["metadata"]["namespace"] != self._site.spec.namespace
            and gpu_groups(pod["metadata"].get("labels") or {})
        ]

    async def _adopt(self, pod: Object) -> None:
        """Give a pod that another binder has bound the labels by which it is watched and scheduled around."""
        labels = pod["metadata"].get("labels") or {}
        if not needs_relabeling(labels):
            return
        try:
            await self._site.label(pod, label_changes(labels, sorted(gpu_groups(labels))))
        except ApiError as error:
            # Denied by a policy, for example: the next leader's first sweep tries again.
            log.warning("a sharing pod cannot be labelled", extra={"pod": str(key_of(pod)), "error": str(error)})


def _held(seen: Sequence[Reservation]) -> set[str]:
    """Return the groups whose device is, or is about to be, held: a reservation that has ended holds nothing."""
    return {one.group for one in seen if one.lives and not one.misplaced}
