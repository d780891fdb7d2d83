"""Reads a request and its surroundings: from the caches first, and live where a decision requires it."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from reconciler.binding.timing import Timing
from reconciler.decide.decide import Action, ReadLive, decide
from reconciler.decide.observed import Absent, Observed, Snapshot, Target
from reconciler.informers import Informers, transform_node, transform_pod
from shared.api import names
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext, copied
from shared.framework.binding.runner import Runner, Served
from shared.framework.config import Settings
from shared.kube.client import KubeClient
from shared.kube.errors import NotFound
from shared.kube.resources import NODES, PODS, Resource
from shared.runtime.clock import Clock
from shared.runtime.logging import with_fields

log = logging.getLogger("reconciler.binding")


@dataclass(frozen=True, slots=True)
class StateReader:
    """Reads the snapshot of a request as precisely as its decision requires."""

    client: KubeClient
    informers: Informers
    runner: Runner
    timing: Timing
    settings: Settings
    clock: Clock
    uninstalling: bool = False

    async def read(self, key: ObjectKey, latest: BindRequest | None, is_stale: bool) -> tuple[Snapshot, Action]:
        """Read the caches, and live what the decision requires; returns the snapshot and the decision.

        ``latest``: the request, possibly newer than the cached one. ``is_stale``: it may be older than the stored
        one. Raises the client's errors.
        """
        snapshot = self.from_cache(key, latest)
        if is_stale:
            await self.read_live(snapshot, Target.REQUEST)
        while isinstance(decision := self._decide(snapshot), ReadLive):
            await self.read_live(snapshot, decision.target)
        return snapshot, decision

    async def read_live(self, snapshot: Snapshot, target: Target) -> None:
        """Read one object from the API server into the snapshot. Raises the client's errors, except NotFound."""
        match target:
            case Target.REQUEST:
                found = await self.informers.get_request(snapshot.key)
                fresh = self.from_cache(
                    snapshot.key, None if isinstance(found, Absent) else decode_bind_request(found)
                )
                snapshot.found = found if isinstance(found, Absent) else fresh.found
                snapshot.pod, snapshot.node, snapshot.times = fresh.pod, fresh.node, fresh.times
                snapshot.live.clear()  # the request may name another pod now
            case Target.POD:
                raw = await self._get(PODS, snapshot.request.pod_key)
                snapshot.pod = transform_pod(raw) if raw is not None else Absent.NOT_FOUND
                if not isinstance(snapshot.pod, Absent):
                    self.informers.offer_pod(snapshot.pod)
            case Target.NODE:
                raw = await self._get(NODES, ObjectKey("", snapshot.request.selected_node))
                snapshot.node = transform_node(raw) if raw is not None else Absent.NOT_FOUND
        snapshot.live.add(target)

    def from_cache(self, key: ObjectKey, request: BindRequest | None) -> Snapshot:
        """Return the snapshot of a request with the cached objects around it."""
        if request is None:
            return Snapshot(key, Absent.NOT_IN_CACHE)
        pod, node = self.informers.pod(request.pod_key), self.informers.node(request.selected_node)
        return Snapshot(
            key,
            request,
            pod if pod is not None else Absent.NOT_IN_CACHE,
            node if node is not None else Absent.NOT_IN_CACHE,
            self.timing.times(request),
        )

    def context(self, snapshot: Snapshot) -> BindContext:
        """Return the context that plugins receive: deep copies of the request, the pod and the node."""
        request, attempt = snapshot.request, snapshot.request.attempt_id
        return BindContext(
            request=replace(request, raw=copied(request.raw)),
            # Copies: whatever a plugin writes into them, the cached objects stay unchanged.
            pod=None if isinstance(snapshot.pod, Absent) else copied(snapshot.pod),
            node=None if isinstance(snapshot.node, Absent) else copied(snapshot.node),
            attempt=request.failed_attempts + 1,
            attempt_id=attempt,
            annotations={names.PREPARED_FOR: request.uid},
            deadline=self.clock.now() + snapshot.times.wait_left(self.settings.binding.wait_timeout),
            client=self.client,
            log=with_fields(log, bindRequest=str(request.key), pod=str(request.pod_key), attempt=attempt),
        )

    def _decide(self, snapshot: Snapshot) -> Action | ReadLive:
        request, preceding, served, has_side_effects = snapshot.found, None, Served(frozenset()), False
        if isinstance(request, BindRequest):
            preceding = self.informers.preceding(request)
            if request.spec is not None:
                served, has_side_effects = self.runner.served(request), self.runner.has_side_effects(request)
        observed = Observed(
            request,
            snapshot.pod_view,
            snapshot.node_view,
            preceding,
            served.demands,
            has_side_effects,
            snapshot.times,
            frozenset(snapshot.live),
            served.errors,
            self.uninstalling,
        )
        return decide(observed, self.settings)

    async def _get(self, resource: Resource, key: ObjectKey) -> dict[str, Any] | None:
        try:
            return await self.client.get(resource, key.namespace, key.name)
        except NotFound:
            return None
