"""Watches the taints of devices, and refuses an allocation of a device that was tainted after the decision.

The caches decide that a device is not tainted; that it is tainted is confirmed by a live read, because the request
then ends. So a bind costs no call, and a stale cache ends none.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bowline.api.meta import Object, ObjectKey
from bowline.framework.binding.handle import EventSource
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import NotFound
from bowline.kube.object_client import ObjectClient
from bowline.kube.reflector import Reflector
from bowline.kube.resources import DEVICETAINTRULES, RESOURCESLICES, Selection
from bowline.plugins.dynamic_resources.taints import (
    TaintedDevice,
    newest_slices,
    pool_part,
    reduce_rule,
    reduce_slice,
    untolerated_taints,
)

_REDUCE = {RESOURCESLICES.kind: reduce_slice, DEVICETAINTRULES.kind: reduce_rule}


class TaintWatch:
    """The tainted devices of the cluster. Methods raise the client's errors."""

    def __init__(self) -> None:
        self.watches: dict[str, Reflector] = {}

    def sources(self) -> Iterable[EventSource]:
        """Return the watches. A cluster that does not serve DeviceTaintRules in this version has none."""
        for resource in (RESOURCESLICES, DEVICETAINTRULES):
            kind, is_optional = resource.kind, resource is DEVICETAINTRULES
            yield EventSource(
                resource,
                transform=_REDUCE[kind],
                attach=partial(self.watches.__setitem__, kind),
                optional=is_optional,
            )

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
        slices, rules = self._cached(RESOURCESLICES.kind), self._cached(DEVICETAINTRULES.kind)
        reads: dict[str | ObjectKey, Sequence[Object]] = {}
        for device in untolerated_taints(allocation, requests, slices, rules):
            is_slice = device.kind == RESOURCESLICES.kind
            place = device.driver if is_slice else device.source
            if place not in reads:
                reads[place] = await self._read(client, device)
            sources = reads[place]
            for confirmed in untolerated_taints(
                allocation, requests, sources if is_slice else (), () if is_slice else sources
            ):
                why = (
                    f"{label}: device {confirmed.device} has the taint {confirmed.taint} ({confirmed.kind} "
                    f"{confirmed.source}), and the claim's request does not tolerate it"
                )
                return Status.fatal(why, Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
        return None

    def _cached(self, kind: str) -> Iterable[Object]:
        watch = self.watches.get(kind)
        return list(watch.store.values()) if watch is not None else ()

    async def _read(self, client: ObjectClient, device: TaintedDevice) -> Sequence[Object]:
        """Return the source of the taint as it is now; of slices those of their pools' newest generations."""
        if device.kind == RESOURCESLICES.kind:
            slices = Selection(RESOURCESLICES, field_selector=f"spec.driver={device.driver}")
            return newest_slices(await client.list_reduced(slices, pool_part))
        try:
            stored = await client.get(DEVICETAINTRULES, "", device.source.name)
        except NotFound:
            return ()
        rule = reduce_rule(stored)
        return (rule,) if rule is not None else ()
