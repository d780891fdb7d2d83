"""Watches the taints of devices, and refuses an allocation of a device that was tainted after the decision.

The caches decide that a device is not tainted; that it is tainted is confirmed by a live read, because the request
then ends. So a bind costs no call, and a stale cache ends none.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bowline.api.meta import Object
from bowline.framework.interface.handle import EventSource
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.reflector import Reflector
from bowline.kube.resources import DEVICETAINTRULES, RESOURCESLICES, Selection
from bowline.plugins.dynamic_resources.taints import (
    newest_slices,
    pool_part,
    reduce_rule,
    reduce_slice,
    untolerated_taints,
)


class TaintWatch:
    """The tainted devices of the cluster. Methods raise the client's errors."""

    def __init__(self) -> None:
        self.watches: dict[str, Reflector] = {}

    def sources(self) -> Iterable[EventSource]:
        """Return the watches. A cluster that does not serve DeviceTaintRules in this version has none."""
        for resource, transform in ((RESOURCESLICES, reduce_slice), (DEVICETAINTRULES, reduce_rule)):
            attach = partial(self.watches.__setitem__, resource.kind)
            yield EventSource(resource, transform=transform, attach=attach, optional=resource is DEVICETAINTRULES)

    async def refusal(
        self,
        client: ObjectClient,
        label: str,
        allocation: Mapping[str, Any] | None,
        requests: Sequence[Mapping[str, Any]],
    ) -> Status | None:
        """Return the failure of an allocation with a device that is tainted now; None if there is none.

        ``label``: the claim in messages. ``requests``: of the claim's spec.
        """
        caches = self._cached(RESOURCESLICES.kind), self._cached(DEVICETAINTRULES.kind)
        cached_taints = untolerated_taints(allocation, requests, *caches)
        drivers = dict.fromkeys(taint.driver for taint in cached_taints if taint.kind == RESOURCESLICES.kind)
        rules = dict.fromkeys(taint.source.name for taint in cached_taints if taint.kind == DEVICETAINTRULES.kind)
        live_slices = [entry for driver in drivers for entry in await self._slices(client, driver)]
        live_rules = [entry for name in rules for entry in await self._rules(client, name)]
        confirmed_taints = untolerated_taints(allocation, requests, live_slices, live_rules)
        if not confirmed_taints:
            return None
        taint = confirmed_taints[0]
        why = (
            f"{label}: device {taint.device} has the taint {taint.taint} ({taint.kind} {taint.source}), and the "
            "claim's request does not tolerate it"
        )
        return Status.fatal(why, Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)

    def _cached(self, kind: str) -> Iterable[Object]:
        watch = self.watches.get(kind)
        return watch.store.values() if watch is not None else ()

    async def _slices(self, client: ObjectClient, driver: str) -> Sequence[Object]:
        """Return the tainted slices of the driver as they are now, in the newest generations of their pools."""
        slices = Selection(RESOURCESLICES, field_selector=f"spec.driver={driver}")
        return newest_slices(await client.list_reduced(slices, pool_part))

    async def _rules(self, client: ObjectClient, name: str) -> Sequence[Object]:
        """Return the rule as it is now; none if it taints nothing any more."""
        try:
            rule = reduce_rule(await client.get(DEVICETAINTRULES, "", name))
        except NotFound:
            return ()
        return (rule,) if rule is not None else ()
